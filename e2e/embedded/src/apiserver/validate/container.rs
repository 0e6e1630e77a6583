//! Validation of a pod's containers.

use std::collections::{BTreeMap, HashSet};

use super::super::field::FieldError;
use super::super::names;
use super::fields::{Fields, amount};
use super::node::resource_quantity;

/// The names of a pod's valid volumes, and whether each can be a block device.
pub(super) type Volumes<'a> = BTreeMap<&'a str, bool>;

pub(super) fn containers(spec: &Fields<'_>, volumes: &Volumes<'_>) {
    let mut names = HashSet::new();
    if spec.list("containers").is_empty() {
        spec.required("containers", "");
    }
    for item in ["containers", "initContainers"]
        .into_iter()
        .flat_map(|field| spec.structs(field))
    {
        container(&item, volumes);
        let name = item.text("name");
        if !names.insert(name) {
            item.duplicate("name", name);
        }
    }
}

/// Checks the image of a pod's container; templates of pods may have other ones.
pub(super) fn trimmed_image(container: &Fields<'_>) {
    let image = container.text("image");
    if image.trim() != image {
        container.invalid("image", image, "must not have leading or trailing whitespace");
    }
}

fn container(container: &Fields<'_>, volumes: &Volumes<'_>) {
    container.check_required("name", names::dns1123_label);
    container.require("image");
    container.one_of("terminationMessagePolicy", &["File", "FallbackToLogsOnError"]);
    ports(container);
    for variable in container.structs("env") {
        variable.require("name");
    }
    mounts(container, volumes);
    devices(container, volumes);
    container.one_of("imagePullPolicy", &["Always", "IfNotPresent", "Never"]);
    let resources = container.child("resources");
    for kind in ["limits", "requests"] {
        for (name, value) in resources.entries(kind) {
            let path = resources.path(kind).key(name);
            let is_standard = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage")
                || name.starts_with("hugepages-");
            if !name.contains('/') && !is_standard {
                let why = "must be a standard resource for containers";
                resources.push(FieldError::invalid(&path, name.as_str(), why));
            }
            resource_quantity(&resources, &path, name, value);
        }
    }
    for (name, value) in resources.entries("requests") {
        let limit = resources.child("limits");
        if let (Some(request), Some(most)) = (amount(value), limit.quantity(name))
            && request.compare(most).is_gt()
        {
            let limit = limit.text(name);
            let why = format!("must be less than or equal to {name} limit of {limit}");
            resources.invalid("requests", value.clone(), why);
        }
    }
}

fn ports(container: &Fields<'_>) {
    let mut names = HashSet::new();
    for port in container.structs("ports") {
        let name = port.text("name");
        if !name.is_empty() && !names.insert(name) {
            port.duplicate("name", name);
        }
        if port.integer("containerPort").unwrap_or_default() == 0 {
            port.required("containerPort", "");
        }
        for field in ["containerPort", "hostPort"] {
            // 0 stands for none.
            port.in_range(field, 0..=65535, "must be between 1 and 65535, inclusive");
        }
        port.one_of("protocol", &["SCTP", "TCP", "UDP"]);
    }
}

fn mounts(container: &Fields<'_>, volumes: &Volumes<'_>) {
    let mut paths = HashSet::new();
    for mount in container.structs("volumeMounts") {
        let (name, target) = (mount.require("name"), mount.text("mountPath"));
        if !volumes.contains_key(name) {
            mount.push(FieldError::not_found(&mount.path("name"), name));
        }
        mount.require("mountPath");
        if !paths.insert(target) {
            mount.invalid("mountPath", target, "must be unique");
        }
        let mut devices = container.structs("volumeDevices");
        if devices.any(|device| device.text("name") == name) {
            mount.invalid("name", name, "must not already exist in volumeDevices");
        }
        let mut devices = container.structs("volumeDevices");
        if devices.any(|device| device.text("devicePath") == target) {
            let why = "must not already exist as a path in volumeDevices";
            mount.invalid("mountPath", target, why);
        }
    }
}

fn devices(container: &Fields<'_>, volumes: &Volumes<'_>) {
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for device in container.structs("volumeDevices") {
        let (name, target) = (device.require("name"), device.text("devicePath"));
        if !names.insert(name) {
            device.invalid("name", name, "must be unique");
        }
        match volumes.get(name) {
            Some(true) => {}
            Some(false) => {
                let why =
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                device.invalid("name", name, why);
            }
            None => device.push(FieldError::not_found(&device.path("name"), name)),
        }
        device.require("devicePath");
        if !paths.insert(target) {
            device.invalid("devicePath", target, "must be unique");
        }
        let mut mounts = container.structs("volumeMounts");
        if mounts.any(|mount| mount.text("name") == name) {
            device.invalid("name", name, "must not already exist in volumeMounts");
        }
        let mut mounts = container.structs("volumeMounts");
        if mounts.any(|mount| mount.text("mountPath") == target) {
            let why = "must not already exist as a path in volumeMounts";
            device.invalid("devicePath", target, why);
        }
    }
}
