//! Validation of PersistentVolumeClaims.

use serde_json::Value;

use super::super::field::{Errors, FieldError, Path};
use super::super::names;
use super::super::object::{self, Object, at, entries, text};
use super::super::quantity::Quantity;
use super::volume::{VOLUME_MODES, access_modes, whole_units};
use super::{amount, each, immutable, label_selector, metadata, one_of};

pub(super) fn claim(object: &Object, errors: &mut Errors) {
    metadata::validate(object, true, names::subdomain_name, errors);
    let empty = Object::new();
    let spec = object.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    claim_spec(spec, &Path::new("spec"), errors);
}

/// The spec of a claim or of a claim template.
fn claim_spec(spec: &Object, path: &Path, errors: &mut Errors) {
    if object::list(spec, "/accessModes").is_empty() {
        let why = "at least 1 access mode is required";
        errors.push(FieldError::required(&path.child("accessModes"), why));
    }
    if let Some(selector) = at(spec, "/selector").as_object() {
        label_selector(errors, &path.child("selector"), selector);
    }
    access_modes(spec, path, errors);
    let field = path.child("resources").key("storage");
    let requested = at(spec, "/resources/requests/storage");
    match amount(requested) {
        None => errors.push(FieldError::required(&field, "")),
        Some(amount) if amount.cmp_zero().is_le() => {
            let why = "must be greater than zero";
            errors.push(FieldError::invalid(&field, requested.clone(), why));
        }
        Some(_) => {}
    }
    let class = text(spec, "/storageClassName");
    if !class.is_empty() {
        let field = path.child("storageClassName");
        each(errors, &field, class, names::dns1123_subdomain(class));
    }
    if let Some(mode) = at(spec, "/volumeMode").as_str() {
        one_of(errors, &path.child("volumeMode"), mode, &VOLUME_MODES);
    }
    data_sources(spec, path, errors);
    let class = text(spec, "/volumeAttributesClassName");
    if !class.is_empty() {
        let field = path.child("volumeAttributesClassName");
        each(errors, &field, class, names::dns1123_subdomain(class));
    }
}

fn data_sources(spec: &Object, path: &Path, errors: &mut Errors) {
    for name in ["dataSource", "dataSourceRef"] {
        let Some(source) = at(spec, &format!("/{name}")).as_object() else {
            continue;
        };
        let path = path.child(name);
        for field in ["name", "kind"] {
            if text(source, &format!("/{field}")).is_empty() {
                errors.push(FieldError::required(&path.child(field), ""));
            }
        }
        let (group, kind) = (text(source, "/apiGroup"), text(source, "/kind"));
        if group.is_empty() && kind != "PersistentVolumeClaim" {
            let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(FieldError::invalid(&path, kind, why));
        }
        if !group.is_empty() {
            let path = path.child("apiGroup");
            each(errors, &path, group, names::dns1123_subdomain(group));
        }
    }
    let (Some(source), Some(reference)) = (
        at(spec, "/dataSource").as_object(),
        at(spec, "/dataSourceRef").as_object(),
    ) else {
        return;
    };
    let fields = ["/apiGroup", "/kind", "/name"];
    let why = if !text(reference, "/namespace").is_empty() {
        "may not be specified when dataSourceRef.namespace is specified"
    } else if fields
        .iter()
        .any(|field| at(source, field) != at(reference, field))
    {
        "must match dataSourceRef"
    } else {
        return;
    };
    // Kubernetes shows the path of the field as the value, which has no exported members.
    errors.push(FieldError::invalid(path, Value::Object(Object::new()), why));
}

pub(super) fn claim_update(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    claim(object, errors);
    let (mut new_spec, mut old_spec) = (at(object, "/spec").clone(), at(old, "/spec").clone());
    let bound = text(object, "/status/phase") == "Bound";
    if text(old, "/spec/volumeName").is_empty() {
        take(&mut old_spec, &new_spec, "volumeName");
    }
    if !object::has(old, "/spec/storageClassName") && object::has(object, "/spec/storageClassName") {
        take(&mut new_spec, &old_spec, "storageClassName");
    }
    if bound {
        take(&mut new_spec, &old_spec, "volumeAttributesClassName");
        if let Some(requests) = new_spec.pointer_mut("/resources/requests") {
            requests["storage"] = at(old, "/spec/resources/requests/storage").clone();
        }
    }
    let path = Path::new("spec");
    if new_spec != old_spec {
        let why = "spec is immutable after creation except resources.requests and volumeAttributesClassName for \
                   bound claims\n";
        errors.push(FieldError::forbidden(&path, why));
    }
    let size = |object: &Object, pointer: &str| amount(at(object, pointer));
    let requested = "/spec/resources/requests/storage";
    let zero = || Quantity::parse("0").expect("zero must be a quantity");
    let size = |object: &Object, pointer: &str| size(object, pointer).unwrap_or_else(zero);
    let new = size(object, requested);
    let is_less = new.compare(size(old, requested)).is_lt();
    if is_less && new.compare(size(old, "/status/capacity/storage")).is_le() {
        let path = path.child("resources").child("requests").child("storage");
        let why = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden(&path, why));
    }
    immutable(errors, &Path::new("volumeMode"), object, old, "/spec/volumeMode");
}

/// Makes a field of `spec` the same as in `other`.
fn take(spec: &mut Value, other: &Value, name: &str) {
    if let Value::Object(spec) = spec {
        match other.get(name) {
            Some(value) => spec.insert(name.to_owned(), value.clone()),
            None => spec.remove(name),
        };
    }
}

pub(super) fn claim_status(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    let path = Path::new("status").child("capacity");
    for (name, value) in entries(object, "/status/capacity") {
        not_negative(errors, &path.key(name), value);
    }
    let supported = [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let path = Path::new("status").child("allocatedResourceStatuses");
    for (name, value) in entries(object, "/status/allocatedResourceStatuses") {
        resource_name(errors, &path, name);
        let state = value.as_str().unwrap_or_default();
        if !supported.contains(&state) {
            errors.push(FieldError::not_supported(&path, name.as_str(), &supported));
        }
    }
    let path = Path::new("status").child("allocatedResources");
    for (name, value) in entries(object, "/status/allocatedResources") {
        if resource_name(errors, &path, name) {
            not_negative(errors, &path.key(name), value);
        }
    }
}

/// Checks the name of a resource of a claim: `storage`, or one with the domain of a vendor.
fn resource_name(errors: &mut Errors, path: &Path, name: &str) -> bool {
    let before = errors.len();
    each(errors, path, name, names::qualified(name));
    let is_native = !name.contains('/') || name.contains("kubernetes.io/");
    if errors.len() == before && is_native && name != "storage" {
        errors.push(FieldError::not_supported(path, name, &["storage"]));
    }
    errors.len() == before
}

fn not_negative(errors: &mut Errors, path: &Path, value: &Value) {
    if amount(value).is_some_and(|amount| amount.cmp_zero().is_lt()) {
        let whole = whole_units(value);
        let why = "must be a valid resource quantity";
        errors.push(FieldError::invalid(path, whole, why));
    }
}

/// The claim template of an ephemeral volume.
pub(super) fn claim_template(template: &Object, path: &Path, errors: &mut Errors) {
    metadata::labels(
        errors,
        &path.child("metadata").child("labels"),
        at(template, "/metadata/labels"),
    );
    let empty = Object::new();
    let spec = template.get("spec").and_then(Value::as_object).unwrap_or(&empty);
    claim_spec(spec, &path.child("spec"), errors);
}
