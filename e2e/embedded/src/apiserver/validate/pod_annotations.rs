//! Validation of the annotations of pods that kube-apiserver interprets.

use serde_json::{Value, json};

use super::super::app_armor::{ANNOTATION_PREFIX, LOCALHOST_PREFIX};
use super::super::field::FieldError;
use super::super::object::{self, ANN_MIRROR_POD, ANN_SECCOMP_CONTAINER_PREFIX, ANN_SECCOMP_POD, Object, at};
use super::container::descending_path;
use super::fields::Fields;
use super::pod::tolerations;
use super::{LOCALHOST_PROFILE, all_containers, metadata};

const TOLERATIONS: &str = "scheduler.alpha.kubernetes.io/tolerations";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
const SECCOMP_RUNTIME_DEFAULT: [&str; 2] = ["runtime/default", "docker/default"];

/// Validates the annotations of a pod; `old` is the one that it replaces.
pub(super) fn validate(pod: &Fields<'_>, old: Option<&Object>) {
    let (metadata, spec) = (pod.child("metadata"), pod.child("spec"));
    let annotations = metadata.child("annotations");
    let invalid = |key: &str, value: &str, why: &str| {
        let path = metadata.path("annotations").key(key);
        metadata.push(FieldError::invalid(&path, value, why));
    };
    if annotations.has(ANN_MIRROR_POD) && spec.text("nodeName").is_empty() {
        let why = "must set spec.nodeName if mirror pod annotation is set";
        invalid(ANN_MIRROR_POD, annotations.text(ANN_MIRROR_POD), why);
    }
    metadata::structs_in_annotation(&metadata, TOLERATIONS, "core.Toleration", tolerations);
    let old = old.map(|old| at(old, "/metadata/annotations"));
    let had_valid_cost = old.is_none_or(|old| has_valid_cost(&old[DELETION_COST]));
    if had_valid_cost && !has_valid_cost(annotations.get(DELETION_COST)) {
        let why = "must be a 32bit integer";
        invalid(DELETION_COST, annotations.text(DELETION_COST), why);
    }
    if annotations.has(ANN_SECCOMP_POD) {
        seccomp_profile(&annotations, ANN_SECCOMP_POD);
    }
    for (key, _) in metadata.entries("annotations") {
        if key.starts_with(ANN_SECCOMP_CONTAINER_PREFIX) {
            seccomp_profile(&annotations, key);
        }
    }
    for (key, value) in metadata.entries("annotations") {
        let Some(container) = key.strip_prefix(ANNOTATION_PREFIX) else {
            continue;
        };
        if !all_containers(&spec).any(|found| found.text("name") == container) {
            invalid(key, container, "container not found");
        }
        let profile = value.as_str().unwrap_or_default();
        if !matches!(profile, "" | "runtime/default" | "unconfined") && !profile.starts_with(LOCALHOST_PREFIX)
        {
            invalid(
                key,
                profile,
                &format!("invalid AppArmor profile name: {profile:?}"),
            );
        }
    }
}

/// Whether a deletion cost is missing or a 32-bit integer without needless characters.
fn has_valid_cost(cost: &Value) -> bool {
    cost.as_str().is_none_or(|cost| {
        let is_padded = cost.starts_with('+') || cost.starts_with('0') && cost != "0";
        !is_padded && cost.parse::<i32>().is_ok()
    })
}

fn seccomp_profile(annotations: &Fields<'_>, key: &str) {
    let profile = annotations.text(key);
    if let Some(path) = profile.strip_prefix(LOCALHOST_PREFIX) {
        let localhost = Object::from_iter([(key.to_owned(), json!(path))]);
        descending_path(&annotations.of_object(&localhost), key);
    } else if profile != "unconfined" && !SECCOMP_RUNTIME_DEFAULT.contains(&profile) {
        annotations.invalid(key, profile, "must be a valid seccomp profile");
    }
}

/// Validates the annotations of a new version of a pod, of which some must not change.
pub(super) fn validate_update(pod: &Fields<'_>, old: &Object) {
    let metadata = pod.child("metadata");
    let after = object::struct_at(metadata.object, "annotations");
    let before = object::struct_at(object::struct_at(old, "metadata"), "annotations");
    let forbid = |key: &str, changes: &str| {
        let what = match key {
            ANN_MIRROR_POD => "mirror pod annotation",
            key if key.starts_with(ANNOTATION_PREFIX) => "AppArmor annotations",
            _ => return,
        };
        let path = metadata.path("annotations").key(key);
        metadata.push(FieldError::forbidden(&path, format!("may not {changes} {what}")));
    };
    for (key, value) in before {
        if after.get(key) != Some(value) {
            forbid(key, "remove or update");
        }
    }
    for key in after.keys().filter(|key| !before.contains_key(*key)) {
        forbid(key, "add");
    }
    validate(pod, Some(old));
}

/// The annotations and the fields of a new pod must not contradict each other.
pub(super) fn match_fields(pod: &Fields<'_>) {
    let spec = pod.child("spec");
    let annotations = pod.child("metadata").child("annotations");
    let seccomp = |owner: &Fields<'_>, key: &str| {
        let profile = owner.child("securityContext").child("seccompProfile");
        if let Some(annotation) = annotations.get(key).as_str() {
            match_field(
                &profile,
                &profile,
                annotation,
                "seccomp",
                &SECCOMP_RUNTIME_DEFAULT,
            );
        }
    };
    seccomp(&spec, ANN_SECCOMP_POD);
    for container in all_containers(&spec) {
        seccomp(
            &container,
            &format!("{ANN_SECCOMP_CONTAINER_PREFIX}{}", container.text("name")),
        );
    }
    if spec.child("os").text("name") == "windows" {
        return;
    }
    for container in all_containers(&spec) {
        let key = format!("{ANNOTATION_PREFIX}{}", container.text("name"));
        let contexts = [&container, &spec].map(|owner| owner.child("securityContext"));
        let profile = contexts
            .iter()
            .find_map(|context| context.given("appArmorProfile"));
        if let (Some(annotation), Some(profile)) = (annotations.get(&key).as_str(), profile) {
            // As upstream, the path is the container's even if the profile is the pod's.
            let shown = contexts[0].child("appArmorProfile");
            match_field(&profile, &shown, annotation, "apparmor", &["runtime/default"]);
        }
    }
}

/// Compares a profile with an annotation; errors have the path of `shown`.
fn match_field(
    profile: &Fields<'_>,
    shown: &Fields<'_>,
    annotation: &str,
    what: &str,
    runtime_default: &[&str],
) {
    let path = annotation.strip_prefix(LOCALHOST_PREFIX);
    let is_same_type = match profile.text("type") {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => runtime_default.contains(&annotation),
        "Localhost" => path.is_some(),
        _ => true,
    };
    if !is_same_type {
        shown.forbidden("type", format!("{what} type in annotation and field must match"));
    } else if profile.text("type") == "Localhost" && profile.get(LOCALHOST_PROFILE).as_str() != path {
        shown.forbidden(
            LOCALHOST_PROFILE,
            format!("{what} profile in annotation and field must match"),
        );
    }
}
