//! Validation of a pod's containers.

use std::collections::{BTreeMap, HashSet};

use super::super::field::FieldError;
use super::super::names;
use super::super::object::EPHEMERAL_CONTAINERS;
use super::fields::Fields;
use super::volume_source::no_backsteps;
use super::{environment, handlers, resources, restart_policy, security_context};

/// Fields that an ephemeral container must not set, in Go's order.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];
pub(super) const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];

/// The names of a pod's valid volumes, and whether each can be a block device.
pub(super) type Volumes<'a> = BTreeMap<&'a str, bool>;

pub(super) fn containers(spec: &Fields<'_>, volumes: &Volumes<'_>) {
    let mut names = HashSet::new();
    let mut unique_name = |item: &Fields<'_>| {
        let name = item.text("name");
        if !names.insert(name.to_owned()) {
            item.duplicate("name", name);
        }
    };
    if spec.list("containers").is_empty() {
        spec.required("containers", "");
    }
    let grace_period = spec.integer("terminationGracePeriodSeconds");
    for item in spec.structs("containers") {
        container(&item, spec, volumes);
        unique_name(&item);
        handlers::lifecycle(&item, grace_period);
        handlers::probes(&item);
        restart_policy::of_container(&item);
    }
    host_ports(spec.structs("containers"));
    for item in spec.structs("initContainers") {
        container(&item, spec, volumes);
        restart_policy::of_init_container(&item);
        unique_name(&item);
        // Init containers run one after the other, so several may use the same port; as upstream, all errors have
        // the path of the first one.
        let first = spec.path("initContainers").index(0);
        host_ports([item.at_path(first)].into_iter());
        if item.text("restartPolicy") == "Always" {
            handlers::lifecycle(&item, grace_period);
            handlers::probes(&item);
            continue;
        }
        let fields = ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"];
        for field in fields.into_iter().filter(|field| item.has(field)) {
            let why = "may not be set for init containers without restartPolicy=Always";
            item.forbidden(field, why);
        }
        restart_policy::no_restart_container(&item);
    }
    for item in spec.structs(EPHEMERAL_CONTAINERS) {
        container(&item, spec, volumes);
        trimmed_image(&item);
        unique_name(&item);
        ephemeral_container(&item, spec);
    }
}

/// The rules that only ephemeral containers have.
fn ephemeral_container(container: &Fields<'_>, spec: &Fields<'_>) {
    const WHY: &str = "cannot be set for an Ephemeral Container";
    let target = container.text("targetContainerName");
    let mut others = ["containers", "initContainers"]
        .into_iter()
        .flat_map(|list| spec.structs(list));
    if !target.is_empty() && !others.any(|other| other.text("name") == target) {
        let path = container.path("targetContainerName");
        container.push(FieldError::not_found(&path, target));
    }
    // Go compares with the zero value, and `resources` is not a pointer.
    let is_set = |field: &&str| match *field {
        "resources" => !container.child(field).object.is_empty(),
        field => container.has(field),
    };
    for field in NOT_EPHEMERAL.into_iter().filter(is_set) {
        container.forbidden(field, WHY);
    }
    for mount in container.structs("volumeMounts") {
        for field in ["subPath", "subPathExpr"] {
            if !mount.text(field).is_empty() {
                mount.forbidden(field, WHY);
            }
        }
    }
}

pub(super) fn host_network_ports(spec: &Fields<'_>) {
    if spec.get("hostNetwork") != true {
        return;
    }
    for port in spec
        .structs("containers")
        .flat_map(|container| container.structs("ports"))
    {
        let [of_host, of_container] =
            ["hostPort", "containerPort"].map(|field| port.integer(field).unwrap_or_default());
        if of_host != of_container {
            let why = "must match `containerPort` when `hostNetwork` is true";
            port.invalid("hostPort", of_host, why);
        }
    }
}

/// Rejects a host port that is used twice.
fn host_ports<'a>(containers: impl Iterator<Item = Fields<'a>>) {
    let mut used = HashSet::new();
    for port in containers.flat_map(|container| container.structs("ports")) {
        let number = port.integer("hostPort").unwrap_or_default();
        let address = format!("{}/{}/{number}", port.text("protocol"), port.text("hostIP"));
        if number != 0 && !used.insert(address.clone()) {
            port.duplicate("hostPort", &address);
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

fn container(container: &Fields<'_>, spec: &Fields<'_>, volumes: &Volumes<'_>) {
    container.check_required("name", names::dns1123_label);
    container.require("image");
    container.one_of("terminationMessagePolicy", &["File", "FallbackToLogsOnError"]);
    ports(container);
    environment::variables(container);
    mounts(container, volumes);
    devices(container, volumes);
    container.one_of("imagePullPolicy", &PULL_POLICIES);
    resources::of_container(container, spec);
    restart_policy::resize_policy(container, spec.text("restartPolicy"));
    security_context::of_container(container, spec.get("hostUsers") != false);
}

fn ports(container: &Fields<'_>) {
    let mut used_names = HashSet::new();
    for port in container.structs("ports") {
        let name = port.text("name");
        let problems = names::port(name);
        if !name.is_empty() && !problems.is_empty() {
            port.found("name", name, problems);
        } else if !name.is_empty() && !used_names.insert(name) {
            port.duplicate("name", name);
        }
        if port.integer("containerPort").unwrap_or_default() == 0 {
            port.required("containerPort", "");
        }
        for field in ["containerPort", "hostPort"] {
            // 0 means unset.
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
        mount_options(container, &mount);
    }
}

/// As upstream, the errors' paths do not name the mount.
fn mount_options(container: &Fields<'_>, mount: &Fields<'_>) {
    let unindexed = mount.at_path(container.path("volumeMounts"));
    descending_path(&unindexed, "subPath");
    if !mount.text("subPath").is_empty() && !mount.text("subPathExpr").is_empty() {
        let why = "subPathExpr and subPath are mutually exclusive";
        mount.invalid("subPathExpr", mount.text("subPathExpr"), why);
    }
    descending_path(&unindexed, "subPathExpr");
    let propagation = mount.text("mountPropagation");
    if mount.has("mountPropagation") {
        unindexed.one_of("mountPropagation", &["Bidirectional", "HostToContainer", "None"]);
        let privileged = container.child("securityContext").get("privileged") == true;
        if propagation == "Bidirectional" && !privileged {
            let why = "Bidirectional mount propagation is available only to privileged containers";
            unindexed.forbidden("mountPropagation", why);
        }
    }
    match mount.text("recursiveReadOnly") {
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if mount.get("readOnly") != true {
                unindexed.forbidden("recursiveReadOnly", "may only be specified when readOnly is true");
            }
            if !matches!(propagation, "" | "None") {
                let why = "may only be specified when mountPropagation is None or not specified";
                unindexed.forbidden("recursiveReadOnly", why);
            }
        }
        _ if !mount.has("recursiveReadOnly") => {}
        _ => unindexed.one_of("recursiveReadOnly", &["Disabled", "Enabled", "IfPossible"]),
    }
}

/// A relative path without steps up, if one is given.
pub(super) fn descending_path(mount: &Fields<'_>, field: &str) {
    let path = mount.text(field);
    if path.starts_with('/') {
        mount.invalid(field, path, "must be a relative path");
    }
    no_backsteps(mount, field);
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
