//! AppArmor profiles of containers: the deprecated annotations and the fields (`applyAppArmorVersionSkew` of Kubernetes).

use serde_json::{Value, json};

use super::object::{self, Object, at, entries, set, text};
use super::resource::Kind;

/// Prefix of annotation keys; the container's name follows.
pub(crate) const ANNOTATION_PREFIX: &str = "container.apparmor.security.beta.kubernetes.io/";
/// Prefix of annotation values; the path of a profile on the node follows.
pub(crate) const LOCALHOST_PREFIX: &str = "localhost/";
/// Maximum length of `localhostProfile`: PATH_MAX - 1.
pub(crate) const PATH_LIMIT: usize = 4095;
const FIELD: &str = "/securityContext/appArmorProfile";

/// Copies the profiles in the annotations of a new pod to fields; returns warnings.
pub(crate) fn copy_annotations(kind: Kind, pod: &mut Object) -> Vec<String> {
    if kind != Kind::Pod
        || !entries(pod, "/metadata/annotations").any(|(key, _)| key.starts_with(ANNOTATION_PREFIX))
        || text(pod, "/spec/os/name") == "windows"
    {
        return Vec::new();
    }
    let annotations = at(pod, "/metadata/annotations").clone();
    let of_pod = at(object::struct_at(pod, "spec"), FIELD).clone();
    let mut warnings = Vec::new();
    object::visit_containers(object::struct_mut(pod, "/spec"), |container| {
        let key = format!("{ANNOTATION_PREFIX}{}", text(container, "/name"));
        let Some(annotation) = annotations.get(&key).and_then(Value::as_str) else {
            return;
        };
        let profile = profile(annotation);
        if object::has(container, FIELD) || profile == of_pod && !of_pod.is_null() {
            return;
        }
        if !profile.is_null() {
            set(container, FIELD, profile);
        }
        warnings.push(format!(
            "metadata.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
        ));
    });
    warnings
}

/// The profile of an annotation (`ApparmorFieldForAnnotation`); null if it is invalid.
fn profile(annotation: &str) -> Value {
    match (annotation, annotation.strip_prefix(LOCALHOST_PREFIX)) {
        ("unconfined", _) => json!({ "type": "Unconfined" }),
        ("runtime/default", _) => json!({ "type": "RuntimeDefault" }),
        (_, Some(path)) if !path.is_empty() && path.trim() == path && path.len() <= PATH_LIMIT => {
            json!({ "type": "Localhost", "localhostProfile": path })
        }
        _ => Value::Null,
    }
}
