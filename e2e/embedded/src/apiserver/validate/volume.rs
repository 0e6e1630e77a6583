//! Validation of PersistentVolumes.

use serde_json::Value;

use super::super::field::{FieldError, IMMUTABLE, Path};
use super::super::names;
use super::super::node_labels;
use super::super::object::{self, ANN_MOUNT_OPTIONS, NULL, Object, at};
use super::fields::{Fields, amount, sorted};
use super::volume_source::no_backsteps;
use super::{csi_driver_name, metadata, node_selector, shown_affinity, volume_source};
use crate::quantity::Quantity;

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
pub(super) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Volume sources in the order of validation.
const SOURCES: [&str; 22] = [
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "flocker",
    "nfs",
    "rbd",
    "quobyte",
    "cephfs",
    "iscsi",
    "cinder",
    "fc",
    "flexVolume",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "scaleIO",
    "local",
    "storageos",
    CSI,
];
const CSI: &str = "csi";

pub(super) fn persistent_volume(object: &Fields<'_>) {
    metadata_and_spec(object);
    mount_options(object);
}

/// The annotation with mount options is allowed for some sources only.
fn mount_options(object: &Fields<'_>) {
    const ALLOWED: [&str; 13] = [
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "gcePersistentDisk",
        "glusterfs",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "quobyte",
        "rbd",
        "vsphereVolume",
    ];
    let spec = object.child("spec");
    let annotations = object.child("metadata").child("annotations");
    if annotations.has(ANN_MOUNT_OPTIONS) && !ALLOWED.iter().any(|source| spec.has(source)) {
        let why = "may not specify mount options for this volume type";
        annotations.forbidden(ANN_MOUNT_OPTIONS, why);
    }
}

fn metadata_and_spec(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    spec(&object.child("spec"), Some(object.child("metadata").text("name")));
}

/// The spec of a volume with this name; in a VolumeAttachment it has none.
pub(super) fn spec(spec: &Fields<'_>, name: Option<&str>) {
    let inline = name.is_none();
    let inline_forbids = "may not be specified in the context of inline volumes";
    if inline {
        if spec.has("claimRef") {
            spec.forbidden("claimRef", inline_forbids);
        }
        if spec.entries("capacity").next().is_some() {
            spec.forbidden("capacity", inline_forbids);
        }
        if !spec.has("csi") {
            spec.required("csi", "has to be specified in the context of inline volumes");
        }
    }
    if spec.list("accessModes").is_empty() {
        spec.required("accessModes", "");
    }
    access_modes(spec);
    if !inline {
        capacity(spec);
    }
    match spec.text("persistentVolumeReclaimPolicy") {
        "" => {}
        _ if !inline => spec.one_of("persistentVolumeReclaimPolicy", &["Delete", "Recycle", "Retain"]),
        "Retain" => {}
        _ => {
            let why = "may only be Retain in the context of inline volumes";
            spec.forbidden("persistentVolumeReclaimPolicy", why);
        }
    }
    if let Some(affinity) = spec.given("nodeAffinity") {
        match affinity.given("required") {
            _ if inline => spec.forbidden("nodeAffinity", inline_forbids),
            Some(selector) => node_selector(&selector),
            None => affinity.required("required", "must specify required node constraints"),
        }
    }
    sources(spec, name.unwrap_or_default());
    if !inline {
        spec.check_given("storageClassName", names::dns1123_subdomain);
    } else if !spec.text("storageClassName").is_empty() {
        spec.forbidden("storageClassName", inline_forbids);
    }
    match spec.get("volumeMode").as_str() {
        Some(_) if !inline => spec.one_of("volumeMode", &VOLUME_MODES),
        None | Some("Filesystem") => {}
        Some(_) => {
            let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            spec.forbidden("volumeMode", why);
        }
    }
    if !inline {
        attributes_class(spec);
    }
}

/// Access modes of a volume or a claim.
pub(super) fn access_modes(spec: &Fields<'_>) {
    let (mut once_pod, mut other) = (false, false);
    for mode in spec.texts("accessModes") {
        spec.supported("accessModes", mode, &ACCESS_MODES);
        if mode == "ReadWriteOncePod" {
            once_pod = true;
        } else if ACCESS_MODES.contains(&mode) {
            other = true;
        }
    }
    if once_pod && other {
        let why = "may not use ReadWriteOncePod with other access modes";
        spec.forbidden("accessModes", why);
    }
}

fn capacity(spec: &Fields<'_>) {
    let count = spec.entries("capacity").count();
    if count == 0 {
        spec.required("capacity", "");
    }
    if count > 1 || !spec.child("capacity").has("storage") {
        let value = sorted(spec.get("capacity"));
        spec.push(FieldError::not_supported(
            &spec.path("capacity"),
            value,
            &["storage"],
        ));
    }
    for (name, value) in spec.entries("capacity") {
        let path = spec.path("capacity").key(name);
        not_negative(spec, &path, value);
        if amount(value).is_some_and(|amount| amount.cmp_zero().is_le()) {
            spec.push(FieldError::invalid(
                &path,
                value.clone(),
                "must be greater than zero",
            ));
        }
    }
}

/// Adds an error if a quantity is negative; the error shows it as Go's `Quantity.Value`.
pub(super) fn not_negative(owner: &Fields<'_>, path: &Path, value: &Value) {
    if let Some(amount) = amount(value).filter(|amount| amount.cmp_zero().is_lt()) {
        let why = "must be a valid resource quantity";
        owner.push(FieldError::invalid(path, Quantity::whole_units(amount), why));
    }
}

fn sources(spec: &Fields<'_>, name: &str) {
    volume_source::only_one(spec, &SOURCES, false, |kind, source| match kind {
        "local" => {
            if !source.require("path").is_empty() {
                no_backsteps(source, "path");
            }
            if !spec.has("nodeAffinity") {
                spec.required("nodeAffinity", "Local volume requires node affinity");
            }
        }
        CSI => csi_source(source),
        _ => volume_source::validate(kind, source, Some(name)),
    });
    let is_recycled = spec.text("persistentVolumeReclaimPolicy") == "Recycle";
    if is_recycled && is_root(spec.child("hostPath").text("path")) {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        spec.forbidden("persistentVolumeReclaimPolicy", why);
    }
}

/// Whether the path is another spelling of `/`.
fn is_root(path: &str) -> bool {
    let depth = path.split('/').fold(0_usize, |depth, part| match part {
        "" | "." => depth,
        ".." => depth.saturating_sub(1),
        _ => depth + 1,
    });
    path.starts_with('/') && depth == 0
}

fn csi_source(source: &Fields<'_>) {
    csi_driver_name(source, "driver");
    source.require("volumeHandle");
    for name in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        if let Some(reference) = source.given(name) {
            reference.check_required("name", names::dns1123_subdomain);
            reference.check_required("namespace", names::dns1123_label);
        }
    }
}

fn attributes_class(spec: &Fields<'_>) {
    let field = "volumeAttributesClassName";
    if !spec.has(field) {
        return;
    }
    if spec.text(field).is_empty() {
        spec.required(field, "an empty string is disallowed");
    }
    spec.check_given(field, names::dns1123_subdomain);
    if !spec.has("csi") {
        let why = "has to be specified when using volumeAttributesClassName";
        spec.required("csi", why);
    }
}

pub(super) fn persistent_volume_update(object: &Fields<'_>, old: &Object) {
    // Kubernetes validates the new object twice: once alone, once as part of the update.
    persistent_volume(object);
    metadata_and_spec(object);
    let spec = object.child("spec");
    let old = object::struct_at(old, "spec");
    let source = |spec: &Object| -> Vec<Value> {
        let mut sources: Vec<Value> = SOURCES
            .iter()
            .map(|name| spec.get(*name).unwrap_or(&NULL).clone())
            .collect();
        // A secret for expansion may be added.
        if !object::has(old, "/csi/controllerExpandSecretRef")
            && let Some(Value::Object(csi)) = sources.last_mut()
        {
            csi.remove("controllerExpandSecretRef");
        }
        sources
    };
    if source(spec.object) != source(old) {
        let why = "spec.persistentvolumesource is immutable after creation\n";
        spec.forbidden("persistentvolumesource", why);
    }
    let unpathed = spec.at_path(Path::default());
    unpathed.immutable(old, "volumeMode");
    let affinity = spec.get("nodeAffinity");
    let before = at(old, "/nodeAffinity");
    if !before.is_null() && *affinity != with_new_labels(before.clone(), affinity) {
        let why = format!("{IMMUTABLE}, except for updating from beta label to GA");
        unpathed.invalid("nodeAffinity", shown_affinity(affinity), why);
    }
    let class = "volumeAttributesClassName";
    if object::has(old, "/volumeAttributesClassName") && !spec.has(class) {
        spec.forbidden(class, "update from non-nil value to nil is forbidden");
    }
}

/// The old node affinity with those beta labels replaced that the new one replaces.
fn with_new_labels(mut old: Value, new: &Value) -> Value {
    match (&mut old, new) {
        (Value::Array(items), Value::Array(new)) => {
            for (item, new) in items.iter_mut().zip(new) {
                *item = with_new_labels(item.take(), new);
            }
        }
        (Value::Object(fields), Value::Object(new)) => {
            for (name, field) in fields {
                let after = new.get(name).unwrap_or(&NULL);
                let label = field.as_str().and_then(node_labels::replacement);
                if name == "key" && label.is_some() && label == after.as_str() {
                    *field = after.clone();
                } else {
                    *field = with_new_labels(field.take(), after);
                }
            }
        }
        _ => {}
    }
    old
}
