//! Validation of AppArmor profiles in fields and in deprecated annotations.

use super::super::app_armor::{ANNOTATION_PREFIX, LOCALHOST_PREFIX, PATH_LIMIT};
use super::super::field::FieldError;
use super::super::object::{self, Object};
use super::all_containers;
use super::fields::Fields;

const PATH: &str = "localhostProfile";

/// The profile in a security context.
pub(super) fn profile(context: &Fields<'_>) {
    let Some(profile) = context.given("appArmorProfile") else {
        return;
    };
    match profile.text("type") {
        "Localhost" => localhost_profile(&profile),
        "RuntimeDefault" | "Unconfined" if profile.has(PATH) => {
            let why = "can only be set when AppArmor type is Localhost";
            profile.invalid(PATH, profile.text(PATH), why);
        }
        "" => profile.required("type", "type is required when appArmorProfile is set"),
        _ => profile.one_of("type", &["Localhost", "RuntimeDefault", "Unconfined"]),
    }
}

fn localhost_profile(profile: &Fields<'_>) {
    let path = profile.text(PATH);
    if path.trim() != path {
        profile.invalid(PATH, path, "must not be padded with whitespace");
    } else if path.is_empty() {
        profile.required(PATH, "must be set when AppArmor type is Localhost");
    }
    if path.len() > PATH_LIMIT {
        profile.too_long(PATH, PATH_LIMIT);
    }
}

/// The annotations of a pod.
pub(super) fn annotations(pod: &Fields<'_>) {
    let metadata = pod.child("metadata");
    let spec = pod.child("spec");
    for (key, value) in metadata.entries("annotations") {
        let Some(container) = key.strip_prefix(ANNOTATION_PREFIX) else {
            continue;
        };
        let invalid = |value: &str, why: &str| {
            let path = metadata.path("annotations").key(key);
            metadata.push(FieldError::invalid(&path, value, why));
        };
        if !all_containers(&spec).any(|found| found.text("name") == container) {
            invalid(container, "container not found");
        }
        let profile = value.as_str().unwrap_or_default();
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with(LOCALHOST_PREFIX)
        {
            invalid(profile, &format!("invalid AppArmor profile name: {profile:?}"));
        }
    }
}

/// The annotations of a new version of a pod, which must not change.
pub(super) fn annotation_updates(pod: &Fields<'_>, old: &Object) {
    let metadata = pod.child("metadata");
    let after = object::struct_at(metadata.object, "annotations");
    let before = object::struct_at(object::struct_at(old, "metadata"), "annotations");
    let forbid = |key: &str, what: &str| {
        let path = metadata.path("annotations").key(key);
        let why = format!("may not {what} AppArmor annotations");
        metadata.push(FieldError::forbidden(&path, why));
    };
    for (key, value) in before {
        if key.starts_with(ANNOTATION_PREFIX) && after.get(key) != Some(value) {
            forbid(key, "remove or update");
        }
    }
    for key in after.keys() {
        if key.starts_with(ANNOTATION_PREFIX) && !before.contains_key(key) {
            forbid(key, "add");
        }
    }
    annotations(pod);
}

/// The annotations and the fields of a new pod must not contradict each other.
pub(super) fn matching_annotations(pod: &Fields<'_>) {
    let spec = pod.child("spec");
    if spec.child("os").text("name") == "windows" {
        return;
    }
    let annotations = pod.child("metadata").child("annotations");
    for container in all_containers(&spec) {
        let key = format!("{ANNOTATION_PREFIX}{}", container.text("name"));
        let contexts = [&container, &spec].map(|owner| owner.child("securityContext"));
        let profile = contexts
            .iter()
            .find_map(|context| context.given("appArmorProfile"));
        let (Some(annotation), Some(profile)) = (annotations.get(&key).as_str(), profile) else {
            continue;
        };
        if let Some((field, what)) = contradiction(&profile, annotation) {
            // As upstream, the path is the container's even if the profile is the pod's.
            let profile = contexts[0].child("appArmorProfile");
            profile.forbidden(
                field,
                format!("apparmor {what} in annotation and field must match"),
            );
        }
    }
}

/// The field that contradicts an annotation, and its name in the error.
fn contradiction(profile: &Fields<'_>, annotation: &str) -> Option<(&'static str, &'static str)> {
    let is_same_type = match profile.text("type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => annotation == "runtime/default",
        "Localhost" => match annotation.strip_prefix(LOCALHOST_PREFIX) {
            Some(path) if profile.get(PATH).as_str() == Some(path) => true,
            Some(_) => return Some((PATH, "profile")),
            None => false,
        },
        _ => true,
    };
    (!is_same_type).then_some(("type", "type"))
}
