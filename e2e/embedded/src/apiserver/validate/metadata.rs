//! Validation of `metadata` (`k8s.io/apimachinery/pkg/api/validation/objectmeta.go`).

use serde_json::Value;

use super::super::field::{Errors, FieldError, Path};
use super::super::names::{self, NameFn};
use super::super::object::{self, Object, list, text};
use super::super::resource::Resource;
use super::{each, immutable, structs};

/// All annotations together.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// `ValidateObjectMeta` of the core group, which also asks for qualified finalizers.
pub(super) fn validate(object: &Object, namespaced: bool, name: NameFn, errors: &mut Errors) {
    validate_apimachinery(object, namespaced, name, errors);
    qualified_finalizers(object, errors);
}

fn qualified_finalizers(object: &Object, errors: &mut Errors) {
    let path = Path::new("metadata").child("finalizers");
    for (index, finalizer) in super::texts(object, "/metadata/finalizers").enumerate() {
        let standard = matches!(finalizer, "kubernetes" | ORPHAN | FOREGROUND);
        if !finalizer.contains('/') && !standard {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(&path.index(index), finalizer, why));
        }
    }
}

/// `ValidateObjectMeta` of apimachinery.
pub(super) fn validate_apimachinery(object: &Object, namespaced: bool, name: NameFn, errors: &mut Errors) {
    let path = Path::new("metadata");
    let prefix = text(object, "/metadata/generateName");
    if !prefix.is_empty() {
        each(errors, &path.child("generateName"), prefix, name(prefix, true));
    }
    let given = object::name(object);
    if given.is_empty() {
        let why = "name or generateName is required";
        errors.push(FieldError::required(&path.child("name"), why));
    } else {
        each(errors, &path.child("name"), given, name(given, false));
    }
    let namespace = object::namespace(object);
    let field = path.child("namespace");
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.push(FieldError::required(&field, "")),
        (true, false) => each(errors, &field, namespace, names::dns1123_label(namespace)),
        (false, false) => errors.push(FieldError::forbidden(&field, "not allowed on this type")),
        (false, true) => {}
    }
    if let Some(generation) = object::at(object, "/metadata/generation").as_i64()
        && generation < 0
    {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&path.child("generation"), generation, why));
    }
    labels(
        errors,
        &path.child("labels"),
        object::at(object, "/metadata/labels"),
    );
    annotations(errors, object);
    owner_references(errors, object);
    finalizers(errors, object);
}

/// What every strategy's object must fulfil besides its own rules.
pub(crate) fn common(resource: &Resource, object: &Object) -> Errors {
    let mut errors = Errors::new();
    validate_apimachinery(object, resource.namespaced, names::path_segment_name, &mut errors);
    errors
}

/// The same for a new version of an object.
pub(crate) fn common_update(resource: &Resource, object: &Object, old: &Object) -> Errors {
    let mut errors = common(resource, object);
    validate_update_apimachinery(object, old, &mut errors);
    errors
}

/// `ValidateObjectMetaUpdate` of the core group.
pub(super) fn validate_update(object: &Object, old: &Object, errors: &mut Errors) {
    validate_update_apimachinery(object, old, errors);
    qualified_finalizers(object, errors);
}

/// `ValidateObjectMetaUpdate` of apimachinery.
pub(super) fn validate_update_apimachinery(object: &Object, old: &Object, errors: &mut Errors) {
    let path = Path::new("metadata");
    if object::is_deleting(old) {
        let before = list(old, "/metadata/finalizers");
        let mut new: Vec<&str> = list(object, "/metadata/finalizers")
            .iter()
            .filter(|finalizer| !before.contains(finalizer))
            .filter_map(Value::as_str)
            .collect();
        new.sort_unstable();
        new.dedup();
        if !new.is_empty() {
            let quoted: Vec<String> = new.iter().map(|finalizer| format!("{finalizer:?}")).collect();
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                quoted.join(", ")
            );
            errors.push(FieldError::forbidden(&path.child("finalizers"), why));
        }
    }
    if text(object, "/metadata/resourceVersion").is_empty() {
        let why = "must be specified for an update";
        errors.push(FieldError::invalid(&path.child("resourceVersion"), "", why));
    }
    for name in ["name", "namespace", "uid"] {
        let pointer = format!("/metadata/{name}");
        if text(object, &pointer) != text(old, &pointer) {
            let value = text(object, &pointer);
            let why = super::super::field::IMMUTABLE;
            errors.push(FieldError::invalid(&path.child(name), value, why));
        }
    }
    for name in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ] {
        immutable(
            errors,
            &path.child(name),
            object,
            old,
            &format!("/metadata/{name}"),
        );
    }
    labels(
        errors,
        &path.child("labels"),
        object::at(object, "/metadata/labels"),
    );
    annotations(errors, object);
    owner_references(errors, object);
}

/// Labels, or a selector by labels.
pub(super) fn labels(errors: &mut Errors, path: &Path, labels: &Value) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        each(errors, path, key, names::qualified(key));
        let value = value.as_str().unwrap_or_default();
        each(errors, path, value, names::label_value(value));
    }
}

fn annotations(errors: &mut Errors, object: &Object) {
    let path = Path::new("metadata").child("annotations");
    let mut size = 0;
    for (key, value) in object::entries(object, "/metadata/annotations") {
        each(errors, &path, key, names::qualified(&key.to_lowercase()));
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > ANNOTATIONS_LIMIT {
        errors.push(FieldError::too_long(&path, ANNOTATIONS_LIMIT));
    }
}

fn owner_references(errors: &mut Errors, object: &Object) {
    let path = Path::new("metadata").child("ownerReferences");
    let mut controller: Option<String> = None;
    for (_, owner) in structs(object, "/metadata/ownerReferences") {
        let version = text(owner, "/apiVersion");
        if version.rsplit('/').next().unwrap_or_default().is_empty() {
            let why = "version must not be empty";
            errors.push(FieldError::invalid(&path.child("apiVersion"), version, why));
        }
        for name in ["kind", "name", "uid"] {
            if text(owner, &format!("/{name}")).is_empty() {
                errors.push(FieldError::invalid(&path.child(name), "", "must not be empty"));
            }
        }
        if version == "v1" && text(owner, "/kind") == "Event" {
            let why = "/v1, Kind=Event is disallowed from being an owner";
            errors.push(FieldError::invalid(
                &path,
                shown_owner(&Value::Object(owner.clone())),
                why,
            ));
        }
        if object::at(owner, "/controller").as_bool() == Some(true) {
            let this = format!("{}/{}", text(owner, "/kind"), text(owner, "/name"));
            if let Some(first) = &controller {
                let why = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {this}"
                );
                let all: Value = object::list(object, "/metadata/ownerReferences")
                    .iter()
                    .map(shown_owner)
                    .collect();
                errors.push(FieldError::invalid(&path, all, why));
            } else {
                controller = Some(this);
            }
        }
    }
}

/// An owner with its fields in Go's order.
fn shown_owner(owner: &Value) -> Value {
    let fields = [
        "apiVersion",
        "kind",
        "name",
        "uid",
        "controller",
        "blockOwnerDeletion",
    ];
    let given = fields
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), owner.get(name)?.clone())));
    Value::Object(given.collect())
}

fn finalizers(errors: &mut Errors, object: &Object) {
    let path = Path::new("metadata").child("finalizers");
    let finalizers: Vec<&str> = super::texts(object, "/metadata/finalizers").collect();
    for finalizer in &finalizers {
        each(errors, &path, finalizer, names::qualified(finalizer));
    }
    if finalizers.contains(&ORPHAN) && finalizers.contains(&FOREGROUND) {
        let why = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        errors.push(FieldError::invalid(&path, finalizers, why));
    }
}
