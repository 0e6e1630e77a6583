//! Validation of Pods: what scheduler, attach/detach controller, kubelet and taint eviction read.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::super::field::FieldError;
use super::super::names;
use super::super::object::{self, Object, at, list};
use super::fields::Fields;
use super::node::tolerations;
use super::{claim, csi_driver_name, metadata, node_selector, volume};

/// The names of a pod's volumes, and whether each can be a block device.
type Volumes<'a> = BTreeMap<&'a str, bool>;

pub(super) fn create(object: &Fields<'_>) {
    spec(object);
    let spec = object.child("spec");
    if !spec.text("nodeName").is_empty() && !spec.list("schedulingGates").is_empty() {
        let why = "cannot be set until all schedulingGates have been cleared";
        spec.forbidden("nodeName", why);
    }
}

fn spec(object: &Fields<'_>) {
    let spec = &object.child("spec");
    let volumes = volumes(spec);
    containers(spec, &volumes);
    spec.one_of("restartPolicy", &["Always", "OnFailure", "Never"]);
    metadata::labels(spec, "nodeSelector");
    let affinity = spec.child("affinity").child("nodeAffinity");
    if let Some(required) = affinity.given("requiredDuringSchedulingIgnoredDuringExecution") {
        node_selector(&required);
    }
    let mut gates = HashSet::new();
    for gate in spec.structs("schedulingGates") {
        gate.check("name", names::qualified);
        if !gates.insert(gate.text("name")) {
            gate.duplicate("name", gate.text("name"));
        }
    }
    spec.check_given("nodeName", names::dns1123_subdomain);
    tolerations(spec);
}

fn volumes<'a>(spec: &Fields<'a>) -> Volumes<'a> {
    let mut valid = Volumes::new();
    for item in spec.structs("volumes") {
        volume::only_one_source(&item, "VolumeSource");
        item.check_required("name", names::dns1123_label);
        let name = item.text("name");
        if valid.contains_key(name) {
            item.duplicate("name", name);
        }
        if let Some(claim) = item.given("persistentVolumeClaim") {
            claim.require("claimName");
        }
        if let Some(source) = item.given("csi") {
            csi_driver_name(&source, "driver");
        }
        if let Some(source) = item.given("ephemeral") {
            match source.given("volumeClaimTemplate") {
                Some(template) => claim::spec(&template.child("spec")),
                None => source.required("volumeClaimTemplate", ""),
            }
        }
        let is_claim = item.has("persistentVolumeClaim") || item.has("ephemeral");
        valid.insert(name, is_claim);
    }
    valid
}

fn containers(spec: &Fields<'_>, volumes: &Volumes<'_>) {
    if spec.list("containers").is_empty() {
        spec.required("containers", "");
    }
    let mut names = HashSet::new();
    let lists = ["containers", "initContainers"].into_iter();
    for container in lists.flat_map(|list| spec.structs(list)) {
        container.check_required("name", names::dns1123_label);
        container.require("image");
        if !names.insert(container.text("name")) {
            container.duplicate("name", container.text("name"));
        }
        uses(&container, "volumeMounts", "mountPath", volumes);
        uses(&container, "volumeDevices", "devicePath", volumes);
        for device in container.structs("volumeDevices") {
            if volumes.get(device.text("name")) == Some(&false) {
                let why = "can only use a PersistentVolumeClaim or an ephemeral volume in block mode";
                device.invalid("name", device.text("name"), why);
            }
        }
    }
}

/// The mounts or devices of a container: each has a volume of the pod, and a path of its own.
fn uses(container: &Fields<'_>, field: &str, path: &str, volumes: &Volumes<'_>) {
    let mut paths = HashSet::new();
    for used in container.structs(field) {
        let name = used.require("name");
        if !name.is_empty() && !volumes.contains_key(name) {
            used.push(FieldError::not_found(&used.path("name"), name));
        }
        if !paths.insert(used.require(path)) {
            used.invalid(path, used.text(path), "must be unique");
        }
    }
}

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    spec(object);
    let spec = &object.child("spec");
    for field in ["containers", "initContainers"] {
        if spec.list(field).len() != list(old, &format!("/spec/{field}")).len() {
            return spec.forbidden(field, "pod updates may not add or remove containers");
        }
    }
    added_tolerations(spec, old);
    let before = list(old, "/spec/schedulingGates");
    for gate in spec.structs("schedulingGates") {
        if !before.iter().any(|found| found["name"] == gate.text("name")) {
            gate.forbidden("name", "only deletion of scheduling gates is allowed");
        }
    }
    if Value::Object(fixed_spec(object.object, old)) != *at(old, "/spec") {
        let why = "pod updates may not change fields other than `spec.containers[*].image`, \
                   `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` (only additions) and \
                   `spec.schedulingGates` (only removals)";
        object.forbidden("spec", why);
    }
}

fn added_tolerations(spec: &Fields<'_>, old: &Object) {
    let without_seconds = |tolerations: &[Value]| {
        let mut tolerations = tolerations.to_vec();
        for toleration in tolerations.iter_mut().filter_map(Value::as_object_mut) {
            toleration.remove("tolerationSeconds");
        }
        tolerations
    };
    let after = without_seconds(spec.list("tolerations"));
    let before = without_seconds(list(old, "/spec/tolerations"));
    if !before.iter().all(|toleration| after.contains(toleration)) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        spec.forbidden("tolerations", why);
    }
}

/// The new spec with all mutable fields reset to their old values.
fn fixed_spec(object: &Object, old: &Object) -> Object {
    let mut fixed = object::struct_at(object, "spec").clone();
    for field in ["containers", "initContainers"] {
        let before = list(old, &format!("/spec/{field}"));
        let containers = fixed.get_mut(field).and_then(Value::as_array_mut);
        for (container, old) in containers.into_iter().flatten().zip(before) {
            container["image"] = old["image"].clone();
        }
    }
    let old = object::struct_at(old, "spec");
    for name in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        object::copy(&mut fixed, old, &format!("/{name}"));
    }
    fixed
}
