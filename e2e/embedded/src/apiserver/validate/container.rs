//! Validation of a pod's containers.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

use super::super::field::{Errors, FieldError, Path};
use super::super::names;
use super::super::object::{Object, at, entries, list, text};
use super::node::resource_quantity;
use super::{amount, each, one_of, structs};

/// All containers; `volumes` has the names of the pod's valid volumes and whether each can be a block device.
pub(super) fn containers(object: &Object, volumes: &BTreeMap<&str, bool>, spec: &Path, errors: &mut Errors) {
    let mut names = HashSet::new();
    for field in ["containers", "initContainers"] {
        let path = spec.child(field);
        if field == "containers" && list(object, "/spec/containers").is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        for (index, item) in structs(object, &format!("/spec/{field}")) {
            let path = path.index(index);
            container(item, volumes, &path, errors);
            let name = text(item, "/name");
            if !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
    }
}

fn container(container: &Object, volumes: &BTreeMap<&str, bool>, path: &Path, errors: &mut Errors) {
    let name = text(container, "/name");
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        each(errors, &path.child("name"), name, names::dns1123_label(name));
    }
    if text(container, "/image").is_empty() {
        errors.push(FieldError::required(&path.child("image"), ""));
    }
    let policy = text(container, "/terminationMessagePolicy");
    let supported = ["File", "FallbackToLogsOnError"];
    one_of(
        errors,
        &path.child("terminationMessagePolicy"),
        policy,
        &supported,
    );
    ports(container, &path.child("ports"), errors);
    for (index, variable) in structs(container, "/env") {
        if text(variable, "/name").is_empty() {
            let path = path.child("env").index(index).child("name");
            errors.push(FieldError::required(&path, ""));
        }
    }
    mounts(container, volumes, path, errors);
    devices(container, volumes, path, errors);
    let policy = text(container, "/imagePullPolicy");
    let supported = ["Always", "IfNotPresent", "Never"];
    one_of(errors, &path.child("imagePullPolicy"), policy, &supported);
    for kind in ["limits", "requests"] {
        for (name, value) in entries(container, &format!("/resources/{kind}")) {
            let path = path.child("resources").child(kind).key(name);
            let is_standard = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
                || name.starts_with("hugepages-");
            if !name.contains('/') && !is_standard {
                let why = "must be a standard resource for containers";
                errors.push(FieldError::invalid(&path, name.as_str(), why));
            }
            resource_quantity(errors, &path, name, value);
        }
    }
    let path = path.child("resources").child("requests");
    for (name, value) in entries(container, "/resources/requests") {
        let limit = at(container, "/resources/limits")
            .get(name)
            .unwrap_or(&Value::Null);
        if let (Some(request), Some(most)) = (amount(value), amount(limit))
            && request.compare(most).is_gt()
        {
            let limit = limit.as_str().unwrap_or_default();
            let why = format!("must be less than or equal to {name} limit of {limit}");
            errors.push(FieldError::invalid(&path, value.clone(), why));
        }
    }
}

fn ports(container: &Object, path: &Path, errors: &mut Errors) {
    let mut names = HashSet::new();
    for (index, port) in structs(container, "/ports") {
        let path = path.index(index);
        let name = text(port, "/name");
        if !name.is_empty() && !names.insert(name) {
            errors.push(FieldError::duplicate(&path.child("name"), name));
        }
        for field in ["containerPort", "hostPort"] {
            let number = at(port, &format!("/{field}")).as_i64().unwrap_or_default();
            if number == 0 && field == "containerPort" {
                errors.push(FieldError::required(&path.child(field), ""));
            } else if number != 0 && !(1..=65535).contains(&number) {
                let why = "must be between 1 and 65535, inclusive";
                errors.push(FieldError::invalid(&path.child(field), number, why));
            }
        }
        let protocol = text(port, "/protocol");
        one_of(errors, &path.child("protocol"), protocol, &["SCTP", "TCP", "UDP"]);
    }
}

fn mounts(container: &Object, volumes: &BTreeMap<&str, bool>, path: &Path, errors: &mut Errors) {
    let mut paths = HashSet::new();
    for (index, mount) in structs(container, "/volumeMounts") {
        let path = path.child("volumeMounts").index(index);
        let (name, target) = (text(mount, "/name"), text(mount, "/mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        if !volumes.contains_key(name) {
            errors.push(FieldError::not_found(&path.child("name"), name));
        }
        if target.is_empty() {
            errors.push(FieldError::required(&path.child("mountPath"), ""));
        }
        if !paths.insert(target) {
            errors.push(FieldError::invalid(
                &path.child("mountPath"),
                target,
                "must be unique",
            ));
        }
        if structs(container, "/volumeDevices").any(|(_, device)| text(device, "/name") == name) {
            let why = "must not already exist in volumeDevices";
            errors.push(FieldError::invalid(&path.child("name"), name, why));
        }
        if structs(container, "/volumeDevices").any(|(_, device)| text(device, "/devicePath") == target) {
            let why = "must not already exist as a path in volumeDevices";
            errors.push(FieldError::invalid(&path.child("mountPath"), target, why));
        }
    }
}

fn devices(container: &Object, volumes: &BTreeMap<&str, bool>, path: &Path, errors: &mut Errors) {
    let (mut device_names, mut paths) = (HashSet::new(), HashSet::new());
    for (index, device) in structs(container, "/volumeDevices") {
        let path = path.child("volumeDevices").index(index);
        let (name, target) = (text(device, "/name"), text(device, "/devicePath"));
        let field = path.child("name");
        if name.is_empty() {
            errors.push(FieldError::required(&field, ""));
        }
        if !device_names.insert(name) {
            errors.push(FieldError::invalid(&field, name, "must be unique"));
        }
        match volumes.get(name) {
            Some(true) => {}
            Some(false) => {
                let why =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                errors.push(FieldError::invalid(&field, name, why));
            }
            None => errors.push(FieldError::not_found(&field, name)),
        }
        if target.is_empty() {
            errors.push(FieldError::required(&path.child("devicePath"), ""));
        }
        if !paths.insert(target) {
            errors.push(FieldError::invalid(
                &path.child("devicePath"),
                target,
                "must be unique",
            ));
        }
        if structs(container, "/volumeMounts").any(|(_, mount)| text(mount, "/name") == name) {
            let why = "must not already exist in volumeMounts";
            errors.push(FieldError::invalid(&field, name, why));
        }
        if structs(container, "/volumeMounts").any(|(_, mount)| text(mount, "/mountPath") == target) {
            let why = "must not already exist as a path in volumeMounts";
            errors.push(FieldError::invalid(&path.child("devicePath"), target, why));
        }
    }
}
