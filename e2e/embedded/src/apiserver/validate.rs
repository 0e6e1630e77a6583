//! Validation of objects (`pkg/apis/*/validation` of Kubernetes): every rule in the order in which kube-apiserver
//! applies it, for the order of the errors is a part of the answer.
//!
//! Not validated, because nothing of the attach/detach path uses it: security contexts, probes, affinity between
//! pods, topology spread, DNS configuration, resource claims, Windows and pod-level resources of a pod.

mod claim;
mod container;
mod core;
mod metadata;
mod node;
mod pod;
mod pod_update;
mod storage;
mod volume;

use serde_json::{Value, json};

pub(crate) use metadata::{common, common_update};

use super::field::{Errors, FieldError, IMMUTABLE, Path};
use super::object::{self, Object};
use super::resource::{Kind, Resource};
use super::strategy::Part;

/// Validates a new object.
pub(crate) fn create(resource: &Resource, object: &Object) -> Errors {
    let mut errors = Errors::new();
    match resource.kind {
        Kind::CsiDriver => storage::csi_driver(object, &mut errors),
        Kind::CsiNode => storage::csi_node(object, &mut errors),
        Kind::CsiStorageCapacity => storage::csi_storage_capacity(object, &mut errors),
        Kind::Event => core::event(resource, object, None, &mut errors),
        Kind::Lease => core::lease(object, &mut errors),
        Kind::Namespace => core::namespace(object, &mut errors),
        Kind::Node => node::node(object, &mut errors),
        Kind::PersistentVolume => volume::persistent_volume(object, &mut errors),
        Kind::PersistentVolumeClaim => claim::claim(object, &mut errors),
        Kind::Pod => {
            pod::metadata_and_spec(object, &mut errors);
            pod::only_on_create(object, &mut errors);
        }
        Kind::Secret => core::secret(object, &mut errors),
        Kind::ServiceAccount => core::service_account(object, &mut errors),
        Kind::StorageClass => storage::storage_class(object, &mut errors),
        Kind::VolumeAttachment => storage::volume_attachment(object, &mut errors),
    }
    errors
}

/// Validates a new version of an object.
pub(crate) fn update(resource: &Resource, part: Part, object: &Object, old: &Object) -> Errors {
    let mut errors = Errors::new();
    match (resource.kind, part) {
        (Kind::CsiDriver, _) => storage::csi_driver_update(object, old, &mut errors),
        (Kind::CsiNode, _) => storage::csi_node_update(object, old, &mut errors),
        (Kind::CsiStorageCapacity, _) => storage::csi_storage_capacity_update(object, old, &mut errors),
        (Kind::Event, _) => core::event(resource, object, Some(old), &mut errors),
        (Kind::Lease, _) => {
            metadata::validate_update_apimachinery(object, old, &mut errors);
            core::lease_spec(object, &mut errors);
        }
        (Kind::Namespace, Part::Main) => {
            core::namespace(object, &mut errors);
            metadata::validate_update(object, old, &mut errors);
        }
        (Kind::Namespace, Part::Status) => core::namespace_status(object, old, &mut errors),
        (Kind::Namespace, Part::Finalize) => {
            metadata::validate_update(object, old, &mut errors);
            core::namespace_finalizers(object, &mut errors);
        }
        (Kind::Node, Part::Main | Part::Finalize) => {
            node::node(object, &mut errors);
            node::update(object, old, &mut errors);
        }
        (Kind::Node, Part::Status) => node::update(object, old, &mut errors),
        (Kind::PersistentVolume, Part::Status) => metadata::validate_update(object, old, &mut errors),
        (Kind::PersistentVolume, _) => volume::persistent_volume_update(object, old, &mut errors),
        (Kind::PersistentVolumeClaim, Part::Status) => claim::claim_status(object, old, &mut errors),
        (Kind::PersistentVolumeClaim, _) => claim::claim_update(object, old, &mut errors),
        (Kind::Pod, Part::Status) => pod_update::status(object, old, &mut errors),
        (Kind::Pod, _) => pod_update::update(object, old, &mut errors),
        (Kind::Secret, _) => core::secret_update(object, old, &mut errors),
        (Kind::ServiceAccount, _) => {
            metadata::validate_update(object, old, &mut errors);
            core::service_account(object, &mut errors);
        }
        (Kind::StorageClass, _) => {
            storage::storage_class(object, &mut errors);
            storage::storage_class_update(object, old, &mut errors);
        }
        (Kind::VolumeAttachment, _) => storage::volume_attachment_update(object, old, &mut errors),
    }
    errors
}

/// An error for each text that `check` finds.
fn each(errors: &mut Errors, path: &Path, value: &str, found: Vec<String>) {
    for why in found {
        errors.push(FieldError::invalid(path, value, why));
    }
}

/// An error if the field changed.
fn immutable(errors: &mut Errors, path: &Path, object: &Object, old: &Object, pointer: &str) {
    let value = object::at(object, pointer);
    if value != object::at(old, pointer) {
        errors.push(FieldError::invalid(path, sorted(value), IMMUTABLE));
    }
}

/// A map as Go shows it: with sorted keys.
fn sorted(value: &serde_json::Value) -> serde_json::Value {
    let Some(entries) = value.as_object() else {
        return value.clone();
    };
    let sorted: std::collections::BTreeMap<_, _> = entries.clone().into_iter().collect();
    serde_json::Value::Object(sorted.into_iter().collect())
}

/// An error if the value is none of `supported`.
fn one_of(errors: &mut Errors, path: &Path, value: &str, supported: &[&str]) {
    if !supported.contains(&value) {
        errors.push(FieldError::not_supported(path, value, supported));
    }
}

/// The name of a CSI driver in a spec.
fn csi_driver_name(errors: &mut Errors, path: &Path, name: &str) {
    if name.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    if name.len() > 63 {
        errors.push(FieldError::too_long(path, 63));
    }
    let found = super::names::dns1123_subdomain(&name.to_ascii_lowercase());
    each(errors, path, name, found);
}

/// Items of a list that are structs.
fn structs<'a>(object: &'a Object, pointer: &str) -> impl Iterator<Item = (usize, &'a Object)> {
    let items = object::list(object, pointer).iter().enumerate();
    items.filter_map(|(index, item)| Some((index, item.as_object()?)))
}

/// Texts in a list.
fn texts<'a>(object: &'a Object, pointer: &str) -> impl Iterator<Item = &'a str> {
    object::list(object, pointer)
        .iter()
        .map(|item| item.as_str().unwrap_or_default())
}

/// A label selector in a spec.
fn label_selector(errors: &mut Errors, path: &Path, selector: &Object) {
    metadata::labels(
        errors,
        &path.child("matchLabels"),
        object::at(selector, "/matchLabels"),
    );
    for (index, expression) in structs(selector, "/matchExpressions") {
        let path = path.child("matchExpressions").index(index);
        let values: Vec<&str> = texts(expression, "/values").collect();
        let operator = object::text(expression, "/operator");
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(&path.child("values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(&path.child("values"), why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.push(FieldError::invalid(
                &path.child("operator"),
                operator,
                "not a valid selector operator",
            )),
        }
        let key = object::text(expression, "/key");
        each(errors, &path.child("key"), key, super::names::qualified(key));
        for (index, value) in values.into_iter().enumerate() {
            let path = path.child("values").index(index);
            each(errors, &path, value, super::names::label_value(value));
        }
    }
}

/// A node selector in a spec.
fn node_selector(errors: &mut Errors, path: &Path, selector: &Object) {
    let terms = path.child("nodeSelectorTerms");
    if object::list(selector, "/nodeSelectorTerms").is_empty() {
        let why = "must have at least one node selector term";
        errors.push(FieldError::required(&terms, why));
    }
    for (index, term) in structs(selector, "/nodeSelectorTerms") {
        for (at, requirement) in structs(term, "/matchExpressions") {
            let path = terms.index(index).child("matchExpressions").index(at);
            node_selector_requirement(errors, &path, requirement);
        }
        for (at, requirement) in structs(term, "/matchFields") {
            let path = terms.index(index).child("matchFields").index(at);
            node_field_requirement(errors, &path, requirement);
        }
    }
}

/// A volume's node affinity as errors show it: as Go's internal type.
fn shown_affinity(affinity: &Value) -> Value {
    let requirements = |list: &Value| {
        match list.as_array().filter(|list| !list.is_empty()) {
        Some(list) => list
            .iter()
            .map(|found| json!({ "Key": found["key"], "Operator": found["operator"], "Values": found["values"] }))
            .collect(),
        None => Value::Null,
    }
    };
    let Some(terms) = affinity["required"]["nodeSelectorTerms"].as_array() else {
        return affinity.clone();
    };
    let terms = terms.iter().map(|term| {
        json!({
            "MatchExpressions": requirements(&term["matchExpressions"]),
            "MatchFields": requirements(&term["matchFields"]),
        })
    });
    json!({ "Required": { "NodeSelectorTerms": terms.collect::<Value>() } })
}

fn node_field_requirement(errors: &mut Errors, path: &Path, requirement: &Object) {
    let values: Vec<&str> = texts(requirement, "/values").collect();
    let operator = object::text(requirement, "/operator");
    let field = path.child("values");
    match operator {
        "In" | "NotIn" if values.len() != 1 => {
            let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
            errors.push(FieldError::required(&field, why));
        }
        "In" | "NotIn" => {}
        _ => {
            let why = "not a valid selector operator";
            errors.push(FieldError::invalid(&path.child("operator"), operator, why));
        }
    }
    let key = object::text(requirement, "/key");
    if key != "metadata.name" {
        let why = "not a valid field selector key";
        errors.push(FieldError::invalid(&path.child("key"), key, why));
        return;
    }
    for (index, value) in values.into_iter().enumerate() {
        let found = super::names::dns1123_subdomain(value);
        each(errors, &field.index(index), value, found);
    }
}

fn node_selector_requirement(errors: &mut Errors, path: &Path, requirement: &Object) {
    let values: Vec<&str> = texts(requirement, "/values").collect();
    let operator = object::text(requirement, "/operator");
    let field = path.child("values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            let why = "must be specified when `operator` is 'In' or 'NotIn'";
            errors.push(FieldError::required(&field, why));
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            let why = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
            errors.push(FieldError::forbidden(&field, why));
        }
        "Gt" | "Lt" if values.len() != 1 => {
            let why = "must be specified single value when `operator` is 'Lt' or 'Gt'";
            errors.push(FieldError::required(&field, why));
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
        _ => {
            let why = "not a valid selector operator";
            errors.push(FieldError::invalid(&path.child("operator"), operator, why));
        }
    }
    let key = object::text(requirement, "/key");
    each(errors, &path.child("key"), key, super::names::qualified(key));
    for (index, value) in values.into_iter().enumerate() {
        each(
            errors,
            &field.index(index),
            value,
            super::names::label_value(value),
        );
    }
}

/// The quantity in a field.
fn amount(value: &Value) -> Option<super::quantity::Quantity> {
    value.as_str().and_then(super::quantity::Quantity::parse)
}
