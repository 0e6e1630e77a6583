//! Validation of PersistentVolumeClaims.

use serde_json::Value;

use super::super::field::{FieldError, IMMUTABLE, Path};
use super::super::names;
use super::super::object::{self, Object, at, text};
use super::fields::{Fields, amount};
use super::volume::{VOLUME_MODES, access_modes, not_negative};
use super::{label_selector, metadata, resources};
use crate::quantity::Quantity;
use crate::volume::ANN_BETA_STORAGE_CLASS;

const RESIZE_STATES: [&str; 5] = [
    "ControllerResizeInProgress",
    "ControllerResizeInfeasible",
    "NodeResizeInProgress",
    "NodeResizeInfeasible",
    "NodeResizePending",
];

pub(super) fn claim(object: &Fields<'_>) {
    validate(object, None);
}

/// Validates a claim; `old` is the one that it replaces.
fn validate(object: &Fields<'_>, old: Option<&Object>) {
    metadata::validate(object, true, names::subdomain_name);
    let sources = ["/spec/dataSource/apiGroup", "/spec/dataSourceRef/apiGroup"];
    let has_group = |old: &Object| sources.iter().any(|group| object::has(old, group));
    claim_spec(&object.child("spec"), !old.is_some_and(has_group));
}

/// The spec of a claim or of a claim template.
fn claim_spec(spec: &Fields<'_>, checks_groups: bool) {
    if spec.list("accessModes").is_empty() {
        spec.required("accessModes", "at least 1 access mode is required");
    }
    if let Some(selector) = spec.given("selector") {
        label_selector(&selector);
    }
    access_modes(spec);
    let requests = spec.child("resources").child("requests");
    let path = spec.path("resources").key("storage");
    match requests.quantity("storage") {
        None => spec.push(FieldError::required(&path, "")),
        Some(amount) if amount.cmp_zero().is_le() => {
            let value = requests.get("storage").clone();
            spec.push(FieldError::invalid(&path, value, "must be greater than zero"));
        }
        Some(_) => {}
    }
    spec.check_given("storageClassName", names::dns1123_subdomain);
    if spec.has("volumeMode") {
        spec.one_of("volumeMode", &VOLUME_MODES);
    }
    data_sources(spec, checks_groups);
    spec.check_given("volumeAttributesClassName", names::dns1123_subdomain);
}

fn data_sources(spec: &Fields<'_>, checks_groups: bool) {
    for name in ["dataSource", "dataSourceRef"] {
        let Some(source) = spec.given(name) else {
            continue;
        };
        source.require("name");
        source.require("kind");
        let kind = source.text("kind");
        if source.text("apiGroup").is_empty() && kind != "PersistentVolumeClaim" {
            let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            spec.invalid(name, kind, why);
        }
        if checks_groups {
            source.check_given("apiGroup", names::dns1123_subdomain);
        }
        source.check_given("namespace", names::dns1123_label);
    }
    let (Some(source), Some(reference)) = (spec.given("dataSource"), spec.given("dataSourceRef")) else {
        return;
    };
    let why = if !reference.text("namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if ["apiGroup", "kind", "name"]
        .iter()
        .any(|field| source.get(field) != reference.get(field))
    {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Kubernetes shows the path of the field as the value, which has no exported members.
    spec.push(FieldError::invalid(
        spec.own_path(),
        Value::Object(Object::new()),
        why,
    ));
}

pub(super) fn claim_update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    validate(object, Some(old));
    let (mut new_spec, mut old_spec) = (object.get("spec").clone(), at(old, "/spec").clone());
    if text(old, "/spec/volumeName").is_empty() {
        take(&mut old_spec, &new_spec, "volumeName");
    }
    let spec = object.child("spec");
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
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for \
                   bound claims\n";
        object.forbidden("spec", why);
    }
    let zero = || Quantity::parse("0").expect("zero must be a quantity");
    let size = |object: &Object, pointer: &str| amount(at(object, pointer)).unwrap_or_else(zero);
    let requested = "/spec/resources/requests/storage";
    let new = size(object.object, requested);
    let is_less = new.compare(size(old, requested)).is_lt();
    if is_less && new.compare(size(old, "/status/capacity/storage")).is_le() {
        let why = "field can not be less than status.capacity";
        spec.child("resources")
            .child("requests")
            .forbidden("storage", why);
    }
    spec.at_path(Path::default())
        .immutable(object::struct_at(old, "spec"), "volumeMode");
    let field = "volumeAttributesClassName";
    let is_applied = object::has(old, "/status/currentVolumeAttributesClassName");
    if is_applied
        && spec.get(field) != at(old, "/spec/volumeAttributesClassName")
        && spec.text(field).is_empty()
    {
        let what = if spec.has(field) { "empty string" } else { "nil" };
        let why =
            format!("update to {what} is forbidden when status.currentVolumeAttributesClassName is not nil");
        spec.forbidden(field, why);
    }
}

/// Whether the claim may get a class, which must be that of the old claim's annotation; the annotation must not change, except
/// that it may be removed then.
fn may_set_class(object: &Fields<'_>, old: &Object) -> bool {
    let metadata = object.child("metadata");
    let annotation = |annotations: &Value| annotations[ANN_BETA_STORAGE_CLASS].as_str().map(str::to_owned);
    let before = annotation(at(old, "/metadata/annotations"));
    let after = annotation(metadata.get("annotations"));
    let class = object
        .child("spec")
        .get("storageClassName")
        .as_str()
        .map(str::to_owned);
    let is_new = class.is_some() && !object::has(old, "/spec/storageClassName");
    let is_replaced = is_new && before.is_some() && class == before && after.is_none();
    if before.as_deref().unwrap_or_default() != after.as_deref().unwrap_or_default() && !is_replaced {
        let path = metadata.path("annotations").child(ANN_BETA_STORAGE_CLASS);
        metadata.push(FieldError::invalid(&path, after.unwrap_or_default(), IMMUTABLE));
    }
    is_new && (before.is_none() || class == before)
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

pub(super) fn claim_status(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    let status = object.child("status");
    for (name, value) in status.entries("capacity") {
        not_negative(&status, &status.path("capacity").key(name), value);
    }
    let states = "allocatedResourceStatuses";
    for (name, value) in status.entries(states) {
        resource_name(&status, states, name);
        if !RESIZE_STATES.contains(&value.as_str().unwrap_or_default()) {
            let path = status.path(states);
            status.push(FieldError::not_supported(&path, name.as_str(), &RESIZE_STATES));
        }
    }
    for (name, value) in status.entries("allocatedResources") {
        if resource_name(&status, "allocatedResources", name) {
            not_negative(&status, &status.path("allocatedResources").key(name), value);
        }
    }
}

/// Checks the name of a resource of a claim: `storage`, or one with the domain of a vendor.
fn resource_name(status: &Fields<'_>, field: &str, name: &str) -> bool {
    let before = status.error_count();
    status.found(field, name, names::qualified(name));
    if status.error_count() == before && resources::is_native(name) {
        status.supported(field, name, &["storage"]);
    }
    status.error_count() == before
}

/// The claim template of an ephemeral volume.
pub(super) fn claim_template(template: &Fields<'_>) {
    metadata::of_template(&template.child("metadata"));
    claim_spec(&template.child("spec"), true);
}
