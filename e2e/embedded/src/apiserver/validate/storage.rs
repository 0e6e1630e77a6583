//! Validation of `storage.k8s.io` (`pkg/apis/storage/validation`).

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::field::{FieldError, IMMUTABLE};
use super::super::names;
use super::super::object::{self, Object, at};
use super::fields::Fields;
use super::{csi_driver_name, label_selector, metadata, shown_label_selector, volume};

const PARAMETERS_LIMIT: usize = 256 * 1024;
const ATTACHMENT_METADATA_LIMIT: usize = 256 * 1024;
const ERROR_MESSAGE_LIMIT: usize = 1024;
const NODE_ID_LIMIT: usize = 256;

pub(super) fn volume_attachment(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    let spec = object.child("spec");
    csi_driver_name(&spec, "attacher");
    attachment_source(&spec);
    spec.check("nodeName", names::dns1123_subdomain);
    attachment_status(&object.child("status"));
    let source = spec.child("source");
    if source.has("persistentVolumeName") {
        source.check("persistentVolumeName", names::dns1123_subdomain);
    }
}

fn attachment_source(spec: &Fields<'_>) {
    let source = spec.child("source");
    let volume = source.get("persistentVolumeName").as_str();
    let why = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (volume, source.given("inlineVolumeSpec")) {
        (None, None) => spec.required("source", why),
        (Some(_), Some(_)) => spec.forbidden("source", why),
        (Some(""), None) => {
            let why = "must specify non empty persistentVolumeName";
            source.required("persistentVolumeName", why);
        }
        (Some(_), None) => {}
        (None, Some(inline)) => volume::spec(&inline, None),
    }
}

fn attachment_status(status: &Fields<'_>) {
    let size: usize = status
        .entries("attachmentMetadata")
        .map(|(key, value)| key.len() + value.as_str().unwrap_or_default().len())
        .sum();
    if size > ATTACHMENT_METADATA_LIMIT {
        status.too_long("attachmentMetadata", ATTACHMENT_METADATA_LIMIT);
    }
    for name in ["attachError", "detachError"] {
        let error = status.child(name);
        if error.text("message").len() > ERROR_MESSAGE_LIMIT {
            // Kubernetes names the limit of the attachment metadata.
            error.too_long("message", ATTACHMENT_METADATA_LIMIT);
        }
        error.in_range("errorCode", 0.., "must be between 0 and 2147483647, inclusive");
    }
}

pub(super) fn volume_attachment_update(object: &Fields<'_>, old: &Object) {
    volume_attachment(object);
    if object.get("spec") != at(old, "/spec") {
        // Kubernetes prints its internal type.
        let field = |pointer: &str| at(object.object, pointer);
        let shown = format!(
            "{{\"Attacher\":{},\"Source\":{{\"PersistentVolumeName\":{},\"InlineVolumeSpec\":{}}},\"NodeName\":{}}}",
            field("/spec/attacher"),
            field("/spec/source/persistentVolumeName"),
            field("/spec/source/inlineVolumeSpec"),
            field("/spec/nodeName"),
        );
        object.push(FieldError::invalid_shown(&object.path("spec"), &shown, IMMUTABLE));
    }
}

pub(super) fn storage_class(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    let provisioner = object.require("provisioner").to_lowercase();
    if !provisioner.is_empty() {
        object.found("provisioner", &provisioner, names::qualified(&provisioner));
    }
    parameters(object);
    if !object.text("reclaimPolicy").is_empty() {
        object.one_of("reclaimPolicy", &["Delete", "Retain"]);
    }
    object.one_of("volumeBindingMode", &["Immediate", "WaitForFirstConsumer"]);
    allowed_topologies(object);
}

fn parameters(object: &Fields<'_>) {
    if object.entries("parameters").count() > 512 {
        object.too_long("parameters", 512);
        return;
    }
    let mut size = 0;
    for (key, value) in object.entries("parameters") {
        if key.is_empty() {
            object.invalid("parameters", "", "field can not be empty.");
        }
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > PARAMETERS_LIMIT {
        object.too_long("parameters", PARAMETERS_LIMIT);
    }
}

fn allowed_topologies(object: &Fields<'_>) {
    // Kubernetes compares with as many empty terms as there are terms, and with the terms before.
    let mut seen: Vec<Value> = vec![json!({}); object.list("allowedTopologies").len()];
    for term in object.structs("allowedTopologies") {
        let mut keys = Map::new();
        for expression in term.structs("matchLabelExpressions") {
            if expression.list("values").is_empty() {
                expression.required("values", "");
            }
            let mut values: Vec<&str> = Vec::new();
            for (at, value) in expression.texts("values").enumerate() {
                if values.contains(&value) {
                    let path = expression.path("values").index(at);
                    expression.push(FieldError::duplicate(&path, value));
                }
                values.push(value);
            }
            expression.check("key", names::qualified);
            let key = expression.text("key");
            values.sort_unstable();
            if keys.insert(key.to_owned(), json!(values)).is_some() {
                expression.duplicate("key", key);
            }
        }
        let keys = Value::Object(keys);
        for _ in seen.iter().filter(|found| **found == keys) {
            term.duplicate("matchLabelExpressions", "");
        }
        seen.push(keys);
    }
}

pub(super) fn storage_class_update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    for name in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        object.immutable(old, name);
    }
}

pub(super) fn csi_node(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    let mut drivers = HashSet::new();
    for driver in object.child("spec").structs("drivers") {
        csi_driver_name(&driver, "name");
        let id = driver.require("nodeID");
        if id.len() > NODE_ID_LIMIT {
            driver.invalid(
                "nodeID",
                id,
                format!("must be {NODE_ID_LIMIT} characters or less"),
            );
        }
        let allocatable = driver.child("allocatable");
        allocatable.in_range("count", 0.., "must be greater than or equal to 0");
        let name = driver.text("name");
        if !drivers.insert(name) {
            driver.duplicate("name", name);
        }
        let path = driver.own_path();
        let mut keys = HashSet::new();
        for key in driver.texts("topologyKeys") {
            if key.is_empty() {
                driver.push(FieldError::required(path, ""));
            }
            if !keys.insert(key) {
                driver.push(FieldError::duplicate(path, key));
            }
            for why in names::qualified(key) {
                driver.push(FieldError::invalid(path, key, why));
            }
        }
    }
}

pub(super) fn csi_node_update(object: &Fields<'_>, old: &Object) {
    csi_node(object);
    let spec = object.child("spec");
    let without_count = |driver: &Object| {
        let mut driver = driver.clone();
        driver.remove("allocatable");
        driver
    };
    for before in object::list(old, "/spec/drivers")
        .iter()
        .filter_map(Value::as_object)
    {
        for after in spec.structs("drivers") {
            let is_same = before.get("name") == after.object.get("name");
            if is_same && without_count(before) != without_count(after.object) {
                let shown = internal_driver(&after);
                spec.push(FieldError::invalid_shown(
                    &spec.path("drivers"),
                    &shown,
                    IMMUTABLE,
                ));
            }
        }
    }
}

/// The driver as Kubernetes prints its internal type.
fn internal_driver(driver: &Fields<'_>) -> String {
    format!(
        "{{\"Name\":{},\"NodeID\":{},\"TopologyKeys\":{},\"Allocatable\":null}}",
        driver.get("name"),
        driver.get("nodeID"),
        driver.get("topologyKeys"),
    )
}

pub(super) fn csi_driver(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    csi_driver_spec(&object.child("spec"));
}

fn csi_driver_spec(spec: &Fields<'_>) {
    for (name, shown) in [
        ("attachRequired", "attachedRequired"),
        ("podInfoOnMount", "podInfoOnMount"),
        ("storageCapacity", "storageCapacity"),
    ] {
        if !spec.has(name) {
            spec.required(shown, "");
        }
    }
    if spec.has("fsGroupPolicy") {
        spec.one_of("fsGroupPolicy", &["File", "None", "ReadWriteOnceWithFSType"]);
    }
    token_requests(spec);
    for mode in spec.texts("volumeLifecycleModes") {
        spec.supported("volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]);
    }
    if !spec.has("seLinuxMount") {
        spec.required("seLinuxMount", "");
    }
    let why = "must be greater than or equal to 10 seconds";
    spec.in_range("nodeAllocatableUpdatePeriodSeconds", 10.., why);
    let field = "serviceAccountTokenInSecrets";
    if spec.has(field) && spec.list("tokenRequests").is_empty() {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        spec.invalid(field, spec.get(field).clone(), why);
    }
}

fn token_requests(spec: &Fields<'_>) {
    let mut audiences = HashSet::new();
    for request in spec.structs("tokenRequests") {
        let audience = request.text("audience");
        if !audiences.insert(audience) {
            request.duplicate("audience", audience);
            continue;
        }
        let field = "expirationSeconds";
        let why = "may not specify a duration less than 10 minutes";
        request.in_range(field, 600.., why);
        let why = "may not specify a duration larger than 2^32 seconds";
        request.in_range(field, ..=1 << 32, why);
    }
}

pub(super) fn csi_driver_update(object: &Fields<'_>, old: &Object) {
    metadata::validate_update(object, old);
    let spec = object.child("spec");
    csi_driver_spec(&spec);
    let attach = spec.get("attachRequired");
    if attach != at(old, "/spec/attachRequired") {
        spec.invalid("attachedRequired", attach.clone(), IMMUTABLE);
    }
    spec.immutable(object::struct_at(old, "spec"), "volumeLifecycleModes");
}

pub(super) fn csi_storage_capacity(object: &Fields<'_>) {
    metadata::validate(object, true, names::subdomain_name);
    if let Some(selector) = object.given("nodeTopology") {
        label_selector(&selector);
    }
    object.check("storageClassName", names::dns1123_subdomain);
    if object
        .quantity("capacity")
        .is_some_and(|capacity| capacity.cmp_zero().is_lt())
    {
        let why = "must be greater than or equal to 0";
        object.invalid("capacity", object.get("capacity").clone(), why);
    }
}

pub(super) fn csi_storage_capacity_update(object: &Fields<'_>, old: &Object) {
    csi_storage_capacity(object);
    metadata::validate_update(object, old);
    let topology = object.get("nodeTopology");
    if topology != at(old, "/nodeTopology") {
        object.invalid("nodeTopology", shown_label_selector(topology), IMMUTABLE);
    }
    object.immutable(old, "storageClassName");
}
