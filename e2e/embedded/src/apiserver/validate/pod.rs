//! Validation of Pods.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::super::field::{Errors, FieldError, Path};
use super::super::names;
use super::super::object::{self, Object, at, list, text};
use super::node::tolerated_effect;
use super::volume::host_path;
use super::{amount, claim, container, csi_driver_name, each, metadata, node_selector, one_of, structs};

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
    security_context(object, &spec.child("securityContext"), errors);
    affinity(object, &spec, errors);
    if dns == "None" && !object::has(object, "/spec/dnsConfig") {
        let why = "must provide `dnsConfig` when `dnsPolicy` is None";
        errors.push(FieldError::required(&spec.child("dnsConfig"), why));
    }
    scheduling_gates(object, &spec.child("schedulingGates"), errors);
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

fn security_context(object: &Object, path: &Path, errors: &mut Errors) {
    for name in ["fsGroup", "runAsUser", "runAsGroup"] {
        let id = at(object, &format!("/spec/securityContext/{name}")).as_i64();
        if let Some(id) = id.filter(|id| !(0..=i64::from(i32::MAX)).contains(id)) {
            let why = "must be between 0 and 2147483647, inclusive";
            errors.push(FieldError::invalid(&path.child(name), id, why));
        }
    }
    if let Some(policy) = at(object, "/spec/securityContext/fsGroupChangePolicy").as_str() {
        one_of(
            errors,
            &path.child("fsGroupChangePolicy"),
            policy,
            &["Always", "OnRootMismatch"],
        );
    }
}

fn scheduling_gates(object: &Object, path: &Path, errors: &mut Errors) {
    let mut seen = HashSet::new();
    for (index, gate) in structs(object, "/spec/schedulingGates") {
        let name = text(gate, "/name");
        each(errors, &path.index(index), name, names::qualified(name));
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path.index(index), name));
        }
    }
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
            "emptyDir" if amount(at(source, "/sizeLimit")).is_some_and(|limit| limit.cmp_zero().is_lt()) => {
                let why = "SizeLimit field must be a valid resource quantity";
                errors.push(FieldError::forbidden(&path.child("sizeLimit"), why));
            }
            "csi" => {
                csi_driver_name(errors, &path.child("driver"), text(source, "/driver"));
                if object::has(source, "/nodePublishSecretRef")
                    && text(source, "/nodePublishSecretRef/name").is_empty()
                {
                    let path = path.child("nodePublishSecretRef").child("name");
                    errors.push(FieldError::required(&path, ""));
                }
            }
            "ephemeral" => ephemeral(source, &path, errors),
            "hostPath" => host_path(source, &path, errors),
            _ => {}
        }
    }
    // A missing name is an error of its own.
    let is_named = !object::name(pod).is_empty() && !text(volume, "/name").is_empty();
    if object::has(volume, "/ephemeral") && is_named {
        claim_name(pod, volume, path, errors);
    }
    if first {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

fn ephemeral(source: &Object, path: &Path, errors: &mut Errors) {
    let field = path.child("volumeClaimTemplate");
    match source.get("volumeClaimTemplate").and_then(Value::as_object) {
        Some(template) => claim::claim_template(template, &field, errors),
        None => errors.push(FieldError::required(&field, "")),
    }
}

/// The name of an ephemeral volume's claim.
fn claim_name(pod: &Object, volume: &Object, path: &Path, errors: &mut Errors) {
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

pub(super) fn tolerations(object: &Object, path: &Path, errors: &mut Errors) {
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
