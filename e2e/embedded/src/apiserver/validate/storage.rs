//! Validation of `storage.k8s.io` (`pkg/apis/storage/validation`).

use std::collections::HashSet;

use serde_json::{Value, json};

use super::super::field::{Errors, FieldError, IMMUTABLE, Path};
use super::super::names;
use super::super::object::{self, Object, at, entries, text};
use super::metadata;
use super::{amount, csi_driver_name, each, immutable, label_selector, one_of, structs, texts, volume};

const PARAMETERS_LIMIT: usize = 256 * 1024;
const ATTACHMENT_METADATA_LIMIT: usize = 256 * 1024;
const ERROR_MESSAGE_LIMIT: usize = 1024;
const NODE_ID_LIMIT: usize = 256;

pub(super) fn volume_attachment(object: &Object, errors: &mut Errors) {
    metadata::validate(object, false, names::subdomain_name, errors);
    let spec = Path::new("spec");
    csi_driver_name(errors, &spec.child("attacher"), text(object, "/spec/attacher"));
    attachment_source(object, &spec.child("source"), errors);
    let node = text(object, "/spec/nodeName");
    each(
        errors,
        &spec.child("nodeName"),
        node,
        names::dns1123_subdomain(node),
    );
    attachment_status(object, errors);
    let source = at(object, "/spec/source/persistentVolumeName");
    if let Some(name) = source.as_str() {
        let path = Path::new("spec.source.persistentVolumeName");
        each(errors, &path, name, names::dns1123_subdomain(name));
    }
}

fn attachment_source(object: &Object, path: &Path, errors: &mut Errors) {
    let volume = at(object, "/spec/source/persistentVolumeName").as_str();
    let inline = at(object, "/spec/source/inlineVolumeSpec").as_object();
    let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (volume, inline) {
        (None, None) => errors.push(FieldError::required(path, why)),
        (Some(_), Some(_)) => errors.push(FieldError::forbidden(path, why)),
        (Some(""), None) => {
            let why = "must specify non empty persistentVolumeName";
            errors.push(FieldError::required(&path.child("persistentVolumeName"), why));
        }
        (Some(_), None) => {}
        (None, Some(spec)) => volume::spec(spec, true, &path.child("inlineVolumeSpec"), errors),
    }
}

fn attachment_status(object: &Object, errors: &mut Errors) {
    let status = Path::new("status");
    let size: usize = entries(object, "/status/attachmentMetadata")
        .map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len())
        .sum();
    if size > ATTACHMENT_METADATA_LIMIT {
        let path = status.child("attachmentMetadata");
        errors.push(FieldError::too_long(&path, ATTACHMENT_METADATA_LIMIT));
    }
    for name in ["attachError", "detachError"] {
        let path = status.child(name);
        if text(object, &format!("/status/{name}/message")).len() > ERROR_MESSAGE_LIMIT {
            // Kubernetes names the limit of the attachment metadata.
            let path = path.child("message");
            errors.push(FieldError::too_long(&path, ATTACHMENT_METADATA_LIMIT));
        }
        let code = at(object, &format!("/status/{name}/errorCode")).as_i64();
        if let Some(code) = code.filter(|code| *code < 0) {
            let why = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(&path.child("errorCode"), code, why));
        }
    }
}

pub(super) fn volume_attachment_update(object: &Object, old: &Object, errors: &mut Errors) {
    volume_attachment(object, errors);
    if at(object, "/spec") != at(old, "/spec") {
        // Kubernetes prints its internal type.
        let shown = format!(
            "{{\"Attacher\":{},\"Source\":{{\"PersistentVolumeName\":{},\"InlineVolumeSpec\":{}}},\"NodeName\":{}}}",
            at(object, "/spec/attacher"),
            at(object, "/spec/source/persistentVolumeName"),
            at(object, "/spec/source/inlineVolumeSpec"),
            at(object, "/spec/nodeName"),
        );
        errors.push(FieldError::invalid_shown(&Path::new("spec"), &shown, IMMUTABLE));
    }
}

pub(super) fn storage_class(object: &Object, errors: &mut Errors) {
    metadata::validate(object, false, names::subdomain_name, errors);
    let provisioner = text(object, "/provisioner");
    let path = Path::new("provisioner");
    if provisioner.is_empty() {
        errors.push(FieldError::required(&path, ""));
    } else {
        let lower = provisioner.to_lowercase();
        each(errors, &path, &lower, names::qualified(&lower));
    }
    parameters(object, errors);
    let policy = text(object, "/reclaimPolicy");
    if !policy.is_empty() {
        one_of(errors, &Path::new("reclaimPolicy"), policy, &["Delete", "Retain"]);
    }
    let modes = ["Immediate", "WaitForFirstConsumer"];
    let mode = text(object, "/volumeBindingMode");
    one_of(errors, &Path::new("volumeBindingMode"), mode, &modes);
    allowed_topologies(object, errors);
}

fn parameters(object: &Object, errors: &mut Errors) {
    let path = Path::new("parameters");
    let count = entries(object, "/parameters").count();
    if count > 512 {
        errors.push(FieldError::too_long(&path, 512));
        return;
    }
    let mut size = 0;
    for (key, value) in entries(object, "/parameters") {
        if key.is_empty() {
            errors.push(FieldError::invalid(&path, "", "field can not be empty."));
        }
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > PARAMETERS_LIMIT {
        errors.push(FieldError::too_long(&path, PARAMETERS_LIMIT));
    }
}

fn allowed_topologies(object: &Object, errors: &mut Errors) {
    let path = Path::new("allowedTopologies");
    // Kubernetes compares with as many empty terms as there are terms, and with the terms before.
    let count = object::list(object, "/allowedTopologies").len();
    let mut seen: Vec<Value> = vec![json!({}); count];
    for (index, term) in structs(object, "/allowedTopologies") {
        let path = path.index(index).child("matchLabelExpressions");
        let mut keys = serde_json::Map::new();
        for (at, expression) in structs(term, "/matchLabelExpressions") {
            let path = path.index(at);
            let mut values: Vec<&str> = Vec::new();
            if object::list(expression, "/values").is_empty() {
                errors.push(FieldError::required(&path.child("values"), ""));
            }
            for (at, value) in texts(expression, "/values").enumerate() {
                if values.contains(&value) {
                    errors.push(FieldError::duplicate(&path.child("values").index(at), value));
                }
                values.push(value);
            }
            let key = text(expression, "/key");
            each(errors, &path.child("key"), key, names::qualified(key));
            values.sort_unstable();
            if keys.insert(key.to_owned(), json!(values)).is_some() {
                errors.push(FieldError::duplicate(&path.child("key"), key));
            }
        }
        let term = Value::Object(keys);
        for _ in seen.iter().filter(|found| **found == term) {
            errors.push(FieldError::duplicate(&path, ""));
        }
        seen.push(term);
    }
}

pub(super) fn storage_class_update(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        immutable(errors, &Path::new(name), object, old, &format!("/{name}"));
    }
}

pub(super) fn csi_node(object: &Object, errors: &mut Errors) {
    metadata::validate(object, false, names::subdomain_name, errors);
    let mut drivers = HashSet::new();
    for (index, driver) in structs(object, "/spec/drivers") {
        let path = Path::new("spec").child("drivers").index(index);
        let name = text(driver, "/name");
        csi_driver_name(errors, &path.child("name"), name);
        let id = text(driver, "/nodeID");
        if id.is_empty() {
            errors.push(FieldError::required(&path.child("nodeID"), ""));
        }
        if id.len() > NODE_ID_LIMIT {
            let why = format!("must be {NODE_ID_LIMIT} characters or less");
            errors.push(FieldError::invalid(&path.child("nodeID"), id, why));
        }
        if let Some(count) = at(driver, "/allocatable/count")
            .as_i64()
            .filter(|count| *count < 0)
        {
            let path = path.child("allocatable").child("count");
            errors.push(FieldError::invalid(
                &path,
                count,
                "must be greater than or equal to 0",
            ));
        }
        if !drivers.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        let mut keys = HashSet::new();
        for key in texts(driver, "/topologyKeys") {
            if key.is_empty() {
                errors.push(FieldError::required(&path, ""));
            }
            if !keys.insert(key) {
                errors.push(FieldError::duplicate(&path, key));
            }
            each(errors, &path, key, names::qualified(key));
        }
    }
}

pub(super) fn csi_node_update(object: &Object, old: &Object, errors: &mut Errors) {
    csi_node(object, errors);
    let without_count = |driver: &Object| {
        let mut driver = driver.clone();
        driver.remove("allocatable");
        driver
    };
    for (_, before) in structs(old, "/spec/drivers") {
        for (_, after) in structs(object, "/spec/drivers") {
            if text(before, "/name") == text(after, "/name") && without_count(before) != without_count(after)
            {
                let path = Path::new("spec").child("drivers");
                let shown = internal_driver(after);
                errors.push(FieldError::invalid_shown(&path, &shown, IMMUTABLE));
            }
        }
    }
}

/// The driver as Kubernetes prints its internal type.
fn internal_driver(driver: &Object) -> String {
    format!(
        "{{\"Name\":{},\"NodeID\":{},\"TopologyKeys\":{},\"Allocatable\":null}}",
        at(driver, "/name"),
        at(driver, "/nodeID"),
        at(driver, "/topologyKeys"),
    )
}

pub(super) fn csi_driver(object: &Object, errors: &mut Errors) {
    metadata::validate(object, false, names::subdomain_name, errors);
    csi_driver_spec(object, errors);
}

fn csi_driver_spec(object: &Object, errors: &mut Errors) {
    let spec = Path::new("spec");
    for (name, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if !object::has(object, &format!("/spec/{name}")) {
            errors.push(FieldError::required(&spec.child(shown), ""));
        }
    }
    if let Some(policy) = at(object, "/spec/fsGroupPolicy").as_str() {
        let supported = ["File", "None", "ReadWriteOnceWithFSType"];
        one_of(errors, &spec.child("fsGroupPolicy"), policy, &supported);
    }
    token_requests(object, &spec.child("tokenRequests"), errors);
    for mode in texts(object, "/spec/volumeLifecycleModes") {
        let path = spec.child("volumeLifecycleModes");
        one_of(errors, &path, mode, &["Persistent", "Ephemeral"]);
    }
    if !object::has(object, "/spec/seLinuxMount") {
        errors.push(FieldError::required(&spec.child("seLinuxMount"), ""));
    }
    if let Some(period) = at(object, "/spec/nodeAllocatableUpdatePeriodSeconds")
        .as_i64()
        .filter(|period| *period < 10)
    {
        let path = spec.child("nodeAllocatableUpdatePeriodSeconds");
        let why = "must be greater than or equal to 10 seconds";
        errors.push(FieldError::invalid(&path, period, why));
    }
    let in_secrets = at(object, "/spec/serviceAccountTokenInSecrets");
    if !in_secrets.is_null() && object::list(object, "/spec/tokenRequests").is_empty() {
        let path = spec.child("serviceAccountTokenInSecrets");
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        errors.push(FieldError::invalid(&path, in_secrets.clone(), why));
    }
}

fn token_requests(object: &Object, path: &Path, errors: &mut Errors) {
    let mut audiences = HashSet::new();
    for (index, request) in structs(object, "/spec/tokenRequests") {
        let path = path.index(index);
        let audience = text(request, "/audience");
        if !audiences.insert(audience) {
            errors.push(FieldError::duplicate(&path.child("audience"), audience));
            continue;
        }
        let Some(seconds) = at(request, "/expirationSeconds").as_i64() else {
            continue;
        };
        let path = path.child("expirationSeconds");
        if seconds < 600 {
            let why = "may not specify a duration less than 10 minutes";
            errors.push(FieldError::invalid(&path, seconds, why));
        }
        if seconds > 1 << 32 {
            let why = "may not specify a duration larger than 2^32 seconds";
            errors.push(FieldError::invalid(&path, seconds, why));
        }
    }
}

pub(super) fn csi_driver_update(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    csi_driver_spec(object, errors);
    let spec = Path::new("spec");
    let attach = spec.child("attachedRequired");
    immutable(errors, &attach, object, old, "/spec/attachRequired");
    let modes = spec.child("volumeLifecycleModes");
    immutable(errors, &modes, object, old, "/spec/volumeLifecycleModes");
}

pub(super) fn csi_storage_capacity(object: &Object, errors: &mut Errors) {
    metadata::validate(object, true, names::subdomain_name, errors);
    if let Some(selector) = at(object, "/nodeTopology").as_object() {
        label_selector(errors, &Path::new("nodeTopology"), selector);
    }
    let class = text(object, "/storageClassName");
    let path = Path::new("storageClassName");
    each(errors, &path, class, names::dns1123_subdomain(class));
    let capacity = at(object, "/capacity");
    if amount(capacity).is_some_and(|capacity| capacity.cmp_zero().is_lt()) {
        let why = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(&Path::new("capacity"), capacity.clone(), why));
    }
}

pub(super) fn csi_storage_capacity_update(object: &Object, old: &Object, errors: &mut Errors) {
    csi_storage_capacity(object, errors);
    metadata::validate_update(object, old, errors);
    for name in ["nodeTopology", "storageClassName"] {
        immutable(errors, &Path::new(name), object, old, &format!("/{name}"));
    }
}
