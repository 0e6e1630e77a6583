//! Validation of PersistentVolumeClaims.

use serde_json::Value;

use super::super::names;
use super::super::object::{self, Object, at, text};
use super::fields::{Fields, amount};
use super::label_selector;
use super::volume::{VOLUME_MODES, access_modes, not_negative};
use crate::quantity::Quantity;
use crate::volume::ANN_BETA_STORAGE_CLASS;

/// The spec of a claim or of a claim template.
pub(super) fn spec(spec: &Fields<'_>) {
    if spec.list("accessModes").is_empty() {
        spec.required("accessModes", "at least 1 access mode is required");
    }
    access_modes(spec);
    if let Some(selector) = spec.given("selector") {
        label_selector(&selector);
    }
    let requests = spec.child("resources").child("requests");
    match requests.quantity("storage") {
        None => requests.required("storage", ""),
        Some(amount) if amount.cmp_zero().is_le() => {
            requests.invalid("storage", requests.text("storage"), "must be greater than zero");
        }
        Some(_) => {}
    }
    spec.check_given("storageClassName", names::dns1123_subdomain);
    if spec.has("volumeMode") {
        spec.one_of("volumeMode", &VOLUME_MODES);
    }
    spec.check_given("volumeAttributesClassName", names::dns1123_subdomain);
}

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    let spec_fields = object.child("spec");
    spec(&spec_fields);
    let (mut new_spec, mut old_spec) = (object.get("spec").clone(), at(old, "/spec").clone());
    if text(old, "/spec/volumeName").is_empty() {
        take(&mut old_spec, &new_spec, "volumeName");
    }
    if may_set_class(object, old) {
        take(&mut new_spec, &old_spec, "storageClassName");
    }
    if object.child("status").text("phase") == "Bound" {
        take(&mut new_spec, &old_spec, "volumeAttributesClassName");
        if let Some(requests) = new_spec.pointer_mut("/resources/requests") {
            requests["storage"] = at(old, "/spec/resources/requests/storage").clone();
        }
    }
    if new_spec != old_spec {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        object.forbidden("spec", why);
    }
    let zero = || Quantity::parse("0").expect("zero must be a quantity");
    let size = |object: &Object, pointer: &str| amount(at(object, pointer)).unwrap_or_else(zero);
    let requested = "/spec/resources/requests/storage";
    let new = size(object.object, requested);
    let is_less = new.compare(size(old, requested)).is_lt();
    if is_less && new.compare(size(old, "/status/capacity/storage")).is_le() {
        let why = "field can not be less than status.capacity";
        spec_fields
            .child("resources")
            .child("requests")
            .forbidden("storage", why);
    }
    let field = "volumeAttributesClassName";
    if object::has(old, "/status/currentVolumeAttributesClassName")
        && spec_fields.get(field) != at(old, "/spec/volumeAttributesClassName")
        && spec_fields.text(field).is_empty()
    {
        let why = "may not be removed when status.currentVolumeAttributesClassName is set";
        spec_fields.forbidden(field, why);
    }
}

/// Whether the claim may get a class: it has none, and no other one in its annotation.
fn may_set_class(object: &Fields<'_>, old: &Object) -> bool {
    let class = object.child("spec").get("storageClassName");
    let annotation = &at(old, "/metadata/annotations")[ANN_BETA_STORAGE_CLASS];
    !class.is_null()
        && !object::has(old, "/spec/storageClassName")
        && (annotation.is_null() || annotation == class)
}

/// Copies a field of `spec` from `other`.
fn take(spec: &mut Value, other: &Value, name: &str) {
    if let Value::Object(spec) = spec {
        match other.get(name) {
            Some(value) => spec.insert(name.to_owned(), value.clone()),
            None => spec.remove(name),
        };
    }
}

pub(super) fn status(object: &Fields<'_>) {
    let status = object.child("status");
    for list in ["capacity", "allocatedResources"] {
        for (name, value) in status.entries(list) {
            not_negative(&status, &status.path(list).key(name), value);
        }
    }
}
