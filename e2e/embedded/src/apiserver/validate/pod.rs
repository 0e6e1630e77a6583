//! Validation of Pods.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::field::{Errors, FieldError, Path};
use super::super::names;
use super::super::object::{self, Object, at, list, text};
use super::node::tolerated_effect;
use super::{claim, container, csi_driver_name, each, immutable, metadata, node_selector, one_of, structs};

/// Volume sources of a pod in the order in which they are looked at, and the field that each requires.
const SOURCES: [(&str, &str); 29] = [
    ("emptyDir", ""),
    ("hostPath", "path"),
    ("gitRepo", "repository"),
    ("gcePersistentDisk", "pdName"),
    ("awsElasticBlockStore", "volumeID"),
    ("secret", "secretName"),
    ("nfs", "server"),
    ("iscsi", "targetPortal"),
    ("glusterfs", "endpoints"),
    ("flocker", ""),
    ("persistentVolumeClaim", "claimName"),
    ("rbd", "image"),
    ("cinder", "volumeID"),
    ("cephfs", ""),
    ("quobyte", "registry"),
    ("downwardAPI", ""),
    ("fc", ""),
    ("flexVolume", "driver"),
    ("configMap", "name"),
    ("azureFile", "secretName"),
    ("vsphereVolume", "volumePath"),
    ("photonPersistentDisk", "pdID"),
    ("portworxVolume", "volumeID"),
    ("azureDisk", "diskName"),
    ("storageos", ""),
    ("projected", ""),
    ("scaleIO", "gateway"),
    ("csi", ""),
    ("ephemeral", ""),
];

pub(super) fn metadata_and_spec(object: &Object, errors: &mut Errors) {
    metadata::validate(object, true, names::subdomain_name, errors);
    let spec = Path::new("spec");
    let volumes = volumes(object, &spec.child("volumes"), errors);
    container::containers(object, &volumes, &spec, errors);
    let restart = text(object, "/spec/restartPolicy");
    one_of(
        errors,
        &spec.child("restartPolicy"),
        restart,
        &["Always", "OnFailure", "Never"],
    );
    let dns = text(object, "/spec/dnsPolicy");
    let supported = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    one_of(errors, &spec.child("dnsPolicy"), dns, &supported);
    metadata::labels(
        errors,
        &spec.child("nodeSelector"),
        at(object, "/spec/nodeSelector"),
    );
    affinity(object, &spec, errors);
    for name in ["serviceAccountName", "nodeName"] {
        let value = text(object, &format!("/spec/{name}"));
        if !value.is_empty() {
            each(errors, &spec.child(name), value, names::dns1123_subdomain(value));
        }
    }
    let deadline = at(object, "/spec/activeDeadlineSeconds").as_i64();
    if let Some(seconds) = deadline.filter(|seconds| !(1..=i64::from(i32::MAX)).contains(seconds)) {
        let why = "must be between 1 and 2147483647, inclusive";
        errors.push(FieldError::invalid(
            &spec.child("activeDeadlineSeconds"),
            seconds,
            why,
        ));
    }
    for name in ["hostname", "subdomain"] {
        let value = text(object, &format!("/spec/{name}"));
        if !value.is_empty() {
            each(errors, &spec.child(name), value, names::dns1123_label(value));
        }
    }
    tolerations(object, &spec.child("tolerations"), errors);
}

pub(super) fn only_on_create(object: &Object, errors: &mut Errors) {
    let spec = Path::new("spec");
    if !list(object, "/spec/ephemeralContainers").is_empty() {
        let path = spec.child("ephemeralContainers");
        errors.push(FieldError::forbidden(&path, "cannot be set on create"));
    }
    if !text(object, "/spec/nodeName").is_empty() && !list(object, "/spec/schedulingGates").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(&spec.child("nodeName"), why));
    }
}

/// Names of the volumes that are valid, and whether each can be a block device.
fn volumes<'a>(object: &'a Object, path: &Path, errors: &mut Errors) -> BTreeMap<&'a str, bool> {
    let mut valid = BTreeMap::new();
    for (index, volume) in structs(object, "/spec/volumes") {
        let path = path.index(index);
        let before = errors.len();
        volume_source(object, volume, &path, errors);
        let name = text(volume, "/name");
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else {
            each(errors, &path.child("name"), name, names::dns1123_label(name));
        }
        if valid.contains_key(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        if errors.len() == before {
            let block = object::has(volume, "/persistentVolumeClaim") || object::has(volume, "/ephemeral");
            valid.insert(name, block);
        }
    }
    valid
}

fn volume_source(pod: &Object, volume: &Object, path: &Path, errors: &mut Errors) {
    let mut first = true;
    for (name, required) in SOURCES {
        let Some(source) = at(volume, &format!("/{name}")).as_object() else {
            continue;
        };
        if !first {
            let why = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(&path.child(name), why));
            continue;
        }
        first = false;
        let path = path.child(if name == "gcePersistentDisk" {
            "persistentDisk"
        } else {
            name
        });
        if !required.is_empty() && text(source, &format!("/{required}")).is_empty() {
            errors.push(FieldError::required(&path.child(required), ""));
        }
        match name {
            "csi" => {
                csi_driver_name(errors, &path.child("driver"), text(source, "/driver"));
                if object::has(source, "/nodePublishSecretRef")
                    && text(source, "/nodePublishSecretRef/name").is_empty()
                {
                    let path = path.child("nodePublishSecretRef").child("name");
                    errors.push(FieldError::required(&path, ""));
                }
            }
            "ephemeral" => ephemeral(pod, volume, source, &path, errors),
            _ => {}
        }
    }
    if first {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn ephemeral(pod: &Object, volume: &Object, source: &Object, path: &Path, errors: &mut Errors) {
    let field = path.child("volumeClaimTemplate");
    match source.get("volumeClaimTemplate").and_then(Value::as_object) {
        Some(template) => claim::claim_template(template, &field, errors),
        None => errors.push(FieldError::required(&field, "")),
    }
    let claim = format!("{}-{}", object::name(pod), text(volume, "/name"));
    for why in names::dns1123_subdomain(&claim) {
        let why = format!("PVC name {claim:?}: {why}");
        errors.push(FieldError::invalid(
            &path.child("name"),
            text(volume, "/name"),
            why,
        ));
    }
}

fn affinity(object: &Object, spec: &Path, errors: &mut Errors) {
    let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(selector) = at(object, required).as_object() {
        let path = spec.child("affinity").child("nodeAffinity");
        let path = path.child("requiredDuringSchedulingIgnoredDuringExecution");
        node_selector(errors, &path, selector);
    }
}

fn tolerations(object: &Object, path: &Path, errors: &mut Errors) {
    for (index, toleration) in structs(object, "/spec/tolerations") {
        let path = path.index(index);
        let field = |name: &str| text(toleration, &format!("/{name}"));
        let (key, value) = (field("key"), field("value"));
        let (operator, effect) = (field("operator"), field("effect"));
        if !key.is_empty() {
            each(errors, &path.child("key"), key, names::qualified(key));
        }
        let path_of_operator = path.child("operator");
        if key.is_empty() && operator != "Exists" {
            let why =
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(&path_of_operator, operator, why));
        }
        if object::has(toleration, "/tolerationSeconds") && effect != "NoExecute" {
            let why = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(&path.child("effect"), effect, why));
        }
        match operator {
            "Equal" | "" => {
                let found = names::label_value(value);
                if !found.is_empty() {
                    errors.push(FieldError::invalid(&path_of_operator, value, found.join(";")));
                }
            }
            "Exists" if value.is_empty() => {}
            "Exists" => {
                let why = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(&path_of_operator, value, why));
            }
            _ => one_of(errors, &path_of_operator, operator, &["Equal", "Exists"]),
        }
        tolerated_effect(errors, &path.child("effect"), effect);
    }
}

pub(super) fn update(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    metadata_and_spec(object, errors);
    let path = Path::new("spec");
    for field in ["containers", "initContainers"] {
        let pointer = format!("/spec/{field}");
        if list(object, &pointer).len() != list(old, &pointer).len() {
            let why = "pod updates may not add or remove containers";
            errors.push(FieldError::forbidden(&path.child(field), why));
            return;
        }
        for (index, container) in structs(object, &pointer) {
            if text(container, "/image").is_empty() {
                let path = path.child(field).index(index).child("image");
                errors.push(FieldError::required(&path, ""));
            }
        }
    }
    if !deadline(object, old, &path, errors) {
        return;
    }
    added_tolerations(object, old, &path.child("tolerations"), errors);
    if fixed_spec(object, old) != *at(old, "/spec") {
        let why = "pod updates may not change fields other than `spec.containers[*].image`,\
                   `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                   existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                   previously negative)\n";
        errors.push(FieldError::forbidden(&path, why));
    }
}

/// Whether validation goes on.
fn deadline(object: &Object, old: &Object, path: &Path, errors: &mut Errors) -> bool {
    let path = path.child("activeDeadlineSeconds");
    let seconds = |object: &Object| at(object, "/spec/activeDeadlineSeconds").as_i64();
    match (seconds(object), seconds(old)) {
        (Some(new), Some(before)) if before < new => {
            let why = "must be less than or equal to previous value";
            errors.push(FieldError::invalid(&path, new, why));
            false
        }
        (None, Some(_)) => {
            let why = "must not update from a positive integer to nil value";
            errors.push(FieldError::invalid(&path, Value::Null, why));
            true
        }
        _ => true,
    }
}

fn added_tolerations(object: &Object, old: &Object, path: &Path, errors: &mut Errors) {
    let without_seconds = |toleration: &Value| {
        let mut toleration = toleration.clone();
        if let Value::Object(toleration) = &mut toleration {
            toleration.remove("tolerationSeconds");
        }
        toleration
    };
    let after: Vec<Value> = list(object, "/spec/tolerations")
        .iter()
        .map(without_seconds)
        .collect();
    let kept = |toleration: &Value| after.contains(&without_seconds(toleration));
    if !list(old, "/spec/tolerations").iter().all(kept) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        errors.push(FieldError::forbidden(path, why));
        return;
    }
    tolerations(object, path, errors);
}

/// The new spec with all that may change set back.
fn fixed_spec(object: &Object, old: &Object) -> Value {
    let mut fixed = at(object, "/spec").clone();
    for field in ["containers", "initContainers"] {
        let before = list(old, &format!("/spec/{field}"));
        let containers = fixed.get_mut(field).and_then(Value::as_array_mut);
        for (container, old) in containers.into_iter().flatten().zip(before) {
            container["image"] = old["image"].clone();
        }
    }
    if let Value::Object(fixed) = &mut fixed {
        for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
            let before = at(old, &format!("/spec/{name}")).clone();
            object::set(fixed, &format!("/{name}"), before);
        }
    }
    fixed
}

pub(super) fn status(object: &Object, old: &Object, errors: &mut Errors) {
    metadata::validate_update(object, old, errors);
    let path = Path::new("status");
    for (index, condition) in structs(object, "/status/conditions") {
        let kind = text(condition, "/type");
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            let path = path.child("conditions").index(index).child("Type");
            each(errors, &path, kind, names::qualified(kind));
        }
    }
    let nominated = text(object, "/status/nominatedNodeName");
    if !nominated.is_empty() && nominated != text(old, "/status/nominatedNodeName") {
        let path = path.child("nominatedNodeName");
        each(errors, &path, nominated, names::dns1123_subdomain(nominated));
    }
    immutable(errors, &path.child("qosClass"), object, old, "/status/qosClass");
}
