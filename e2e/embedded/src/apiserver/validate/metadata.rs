//! Validation of `metadata` (`k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).

use serde_json::Value;

use super::super::field::{FieldError, IMMUTABLE, Path};
use super::super::names::{self, NameFn};
use super::super::object::{self, FOREGROUND, ORPHAN, Object, list};
use super::super::resource::{Kind, Resource};
use super::fields::Fields;

/// Maximum total size of the annotations in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// `ValidateObjectMeta`.
pub(super) fn validate(resource: &Resource, object: &Fields<'_>, name: NameFn) {
    let metadata = &object.child("metadata");
    metadata.check_given("generateName", |prefix| name(prefix, true));
    if metadata.text("name").is_empty() {
        metadata.required("name", "name or generateName is required");
    }
    metadata.check_given("name", |given| name(given, false));
    match (resource.namespaced, metadata.text("namespace").is_empty()) {
        (true, _) => metadata.check_required("namespace", names::dns1123_label),
        (false, false) => metadata.forbidden("namespace", "not allowed on this type"),
        (false, true) => {}
    }
    metadata.in_range("generation", 0.., "must be greater than or equal to 0");
    labels(metadata, "labels");
    annotations(metadata);
    owner_references(metadata);
    let is_core_event = resource.kind == Kind::Event && resource.group.is_empty();
    let needs_domain = resource.kind != Kind::Lease && !is_core_event;
    finalizers(metadata, needs_domain);
}

/// `ValidateObjectMetaUpdate`.
pub(super) fn validate_update(object: &Fields<'_>, old: &Object) {
    let metadata = &object.child("metadata");
    if object::is_deleting(old) {
        let before = list(old, "/metadata/finalizers");
        let is_new = |finalizer: &&str| !before.iter().any(|found| found == finalizer);
        let new: Vec<&str> = metadata.texts("finalizers").filter(is_new).collect();
        if !new.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers {new:?}"
            );
            metadata.forbidden("finalizers", why);
        }
    }
    if metadata.text("resourceVersion").is_empty() {
        metadata.invalid("resourceVersion", "", "must be specified for an update");
    }
    let old = object::struct_at(old, "metadata");
    for name in ["name", "namespace", "uid"] {
        let value = metadata.text(name);
        if value != old.get(name).and_then(Value::as_str).unwrap_or_default() {
            metadata.invalid(name, value, IMMUTABLE);
        }
    }
    for name in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        metadata.immutable(old, name);
    }
}

/// Labels, or a selector by labels.
pub(super) fn labels(owner: &Fields<'_>, name: &str) {
    for (key, value) in owner.entries(name) {
        owner.found(name, key, names::qualified(key));
        let value = value.as_str().unwrap_or_default();
        owner.found(name, value, names::label_value(value));
    }
}

fn annotations(metadata: &Fields<'_>) {
    let mut size = 0;
    for (key, value) in metadata.entries("annotations") {
        metadata.found("annotations", key, names::qualified(&key.to_lowercase()));
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > ANNOTATIONS_LIMIT {
        metadata.too_long("annotations", ANNOTATIONS_LIMIT);
    }
}

fn owner_references(metadata: &Fields<'_>) {
    let list = "ownerReferences";
    for owner in metadata.structs(list) {
        let version = owner.text("apiVersion");
        if version.rsplit('/').next().unwrap_or_default().is_empty() {
            owner.invalid("apiVersion", version, "version must not be empty");
        }
        for name in ["kind", "name", "uid"] {
            if owner.text(name).is_empty() {
                owner.invalid(name, "", "must not be empty");
            }
        }
        if version == "v1" && owner.text("kind") == "Event" {
            owner.invalid("kind", "Event", "an Event must not be an owner");
        }
    }
    let controllers = metadata
        .structs(list)
        .filter(|owner| *owner.get("controller") == true);
    if controllers.count() > 1 {
        let why = "only one reference can have `controller` set to true";
        metadata.invalid(list, metadata.get(list).clone(), why);
    }
}

fn finalizers(metadata: &Fields<'_>, needs_domain: bool) {
    let finalizers: Vec<&str> = metadata.texts("finalizers").collect();
    for (index, name) in finalizers.iter().enumerate() {
        finalizer(
            metadata,
            &metadata.path("finalizers").index(index),
            name,
            needs_domain,
        );
    }
    if finalizers.contains(&ORPHAN) && finalizers.contains(&FOREGROUND) {
        let why = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        metadata.invalid("finalizers", finalizers, why);
    }
}

/// A finalizer: a qualified name, in most kinds with the domain of its owner.
pub(super) fn finalizer(owner: &Fields<'_>, path: &Path, name: &str, needs_domain: bool) {
    for why in names::qualified(name) {
        owner.push(FieldError::invalid(path, name, why));
    }
    let is_standard = matches!(name, "kubernetes" | ORPHAN | FOREGROUND);
    if needs_domain && !name.contains('/') && !is_standard {
        let why = "name is neither a standard finalizer name nor is it fully qualified";
        owner.push(FieldError::invalid(path, name, why));
    }
}
