//! Validation of `storage.k8s.io` (`pkg/apis/storage/validation`).

use std::collections::HashSet;

use serde_json::Value;

use super::super::field::IMMUTABLE;
use super::super::names;
use super::super::object::{self, Object, at};
use super::fields::Fields;
use super::{csi_driver_name, label_selector, volume};

const PARAMETERS_LIMIT: usize = 256 * 1024;
const ATTACHMENT_METADATA_LIMIT: usize = 256 * 1024;
const ERROR_MESSAGE_LIMIT: usize = 1024;
const NODE_ID_LIMIT: usize = 256;

pub(super) fn volume_attachment(object: &Fields<'_>) {
    let spec = object.child("spec");
    csi_driver_name(&spec, "attacher");
    attachment_source(&spec);
    spec.check("nodeName", names::dns1123_subdomain);
    let status = object.child("status");
    if size(&status, "attachmentMetadata") > ATTACHMENT_METADATA_LIMIT {
        status.too_long("attachmentMetadata", ATTACHMENT_METADATA_LIMIT);
    }
    for name in ["attachError", "detachError"] {
        let error = status.child(name);
        if error.text("message").len() > ERROR_MESSAGE_LIMIT {
            error.too_long("message", ERROR_MESSAGE_LIMIT);
        }
        error.in_range("errorCode", 0.., "must be greater than or equal to 0");
    }
}

fn attachment_source(spec: &Fields<'_>) {
    let source = spec.child("source");
    let name = "persistentVolumeName";
    match (source.has(name), source.given("inlineVolumeSpec")) {
        (false, None) => spec.required("source", "must have inlineVolumeSpec or persistentVolumeName"),
        (true, Some(_)) => {
            spec.forbidden(
                "source",
                "must not have both inlineVolumeSpec and persistentVolumeName",
            );
        }
        (true, None) => source.check_required(name, names::dns1123_subdomain),
        (false, Some(inline)) => volume::spec(&inline, true),
    }
}

/// Size of a map of texts in bytes.
fn size(owner: &Fields<'_>, name: &str) -> usize {
    let entries = owner.entries(name);
    entries
        .map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len())
        .sum()
}

pub(super) fn volume_attachment_update(object: &Fields<'_>, old: &Object) {
    volume_attachment(object);
    object.immutable(old, "spec");
}

pub(super) fn storage_class(object: &Fields<'_>) {
    let provisioner = object.require("provisioner").to_lowercase();
    if !provisioner.is_empty() {
        object.found("provisioner", &provisioner, names::qualified(&provisioner));
    }
    if object.entries("parameters").any(|(key, _)| key.is_empty()) {
        object.invalid("parameters", "", "keys must not be empty");
    }
    if object.entries("parameters").count() > 512 || size(object, "parameters") > PARAMETERS_LIMIT {
        object.too_long("parameters", PARAMETERS_LIMIT);
    }
    if !object.text("reclaimPolicy").is_empty() {
        object.one_of("reclaimPolicy", &["Delete", "Retain"]);
    }
    object.one_of("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]);
    for term in object.structs("allowedTopologies") {
        for expression in term.structs("matchLabelExpressions") {
            if expression.list("values").is_empty() {
                expression.required("values", "");
            }
            expression.check("key", names::qualified);
        }
    }
}

pub(super) fn storage_class_update(object: &Fields<'_>, old: &Object) {
    storage_class(object);
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        object.immutable(old, name);
    }
}

pub(super) fn csi_node(object: &Fields<'_>) {
    let mut drivers = HashSet::new();
    for driver in object.child("spec").structs("drivers") {
        csi_driver_name(&driver, "name");
        if driver.require("nodeID").len() > NODE_ID_LIMIT {
            driver.too_long("nodeID", NODE_ID_LIMIT);
        }
        let allocatable = driver.child("allocatable");
        allocatable.in_range("count", 0.., "must be greater than or equal to 0");
        if !drivers.insert(driver.text("name")) {
            driver.duplicate("name", driver.text("name"));
        }
        driver.check_items("topologyKeys", names::qualified);
        let mut keys = HashSet::new();
        for key in driver.texts("topologyKeys").filter(|key| !keys.insert(*key)) {
            driver.duplicate("topologyKeys", key);
        }
    }
}

pub(super) fn csi_node_update(object: &Fields<'_>, old: &Object) {
    csi_node(object);
    let without_count = |driver: &Object| {
        let mut driver = driver.clone();
        driver.remove("allocatable");
        driver
    };
    let before = object::list(old, "/spec/drivers").iter();
    for before in before.filter_map(Value::as_object) {
        for after in object.child("spec").structs("drivers") {
            let is_same = before.get("name") == after.object.get("name");
            if is_same && without_count(before) != without_count(after.object) {
                after.invalid(
                    "name",
                    after.text("name"),
                    "a driver is immutable except `allocatable`",
                );
            }
        }
    }
}

pub(super) fn csi_driver(object: &Fields<'_>) {
    let spec = object.child("spec");
    spec.one_of("fsGroupPolicy", &["File", "None", "ReadWriteOnceWithFSType"]);
    for mode in spec.texts("volumeLifecycleModes") {
        spec.supported("volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]);
    }
    let mut audiences = HashSet::new();
    for request in spec.structs("tokenRequests") {
        if !audiences.insert(request.text("audience")) {
            request.duplicate("audience", request.text("audience"));
        }
        let why = "must be between 10 minutes and 2^32 seconds";
        request.in_range("expirationSeconds", 600..=1 << 32, why);
    }
    let why = "must be greater than or equal to 10 seconds";
    spec.in_range("nodeAllocatableUpdatePeriodSeconds", 10.., why);
    let field = "serviceAccountTokenInSecrets";
    if spec.has(field) && spec.list("tokenRequests").is_empty() {
        let why = "is set but no tokenRequests are specified";
        spec.invalid(field, spec.get(field).clone(), why);
    }
}

pub(super) fn csi_driver_update(object: &Fields<'_>, old: &Object) {
    csi_driver(object);
    for name in ["attachRequired", "volumeLifecycleModes"] {
        object
            .child("spec")
            .immutable(object::struct_at(old, "spec"), name);
    }
}

pub(super) fn csi_storage_capacity(object: &Fields<'_>) {
    if let Some(selector) = object.given("nodeTopology") {
        label_selector(&selector);
    }
    object.check("storageClassName", names::dns1123_subdomain);
    volume::not_negative(object, &object.path("capacity"), object.get("capacity"));
}

pub(super) fn csi_storage_capacity_update(object: &Fields<'_>, old: &Object) {
    csi_storage_capacity(object);
    if object.get("nodeTopology") != at(old, "/nodeTopology") {
        object.invalid("nodeTopology", object.get("nodeTopology").clone(), IMMUTABLE);
    }
    object.immutable(old, "storageClassName");
}
