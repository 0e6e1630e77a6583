//! Validation of PersistentVolumes.

use serde_json::Value;

use super::super::field::{FieldError, IMMUTABLE, Path};
use super::super::names;
use super::super::object::{self, NULL, Object, at};
use super::fields::{Fields, amount, sorted};
use super::{csi_driver_name, metadata, node_selector, shown_affinity};
use crate::quantity::Quantity;

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
pub(super) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Volume sources in the order of validation, with their required fields.
const SOURCES: [(&str, &[&str]); 22] = [
    ("hostPath", &["path"]),
    ("gcePersistentDisk", &["pdName"]),
    ("awsElasticBlockStore", &["volumeID"]),
    ("glusterfs", &["endpoints", "path"]),
    ("flocker", &[]),
    ("nfs", &["server", "path"]),
    ("rbd", &["monitors", "image"]),
    ("quobyte", &["registry", "volume"]),
    ("cephfs", &["monitors"]),
    ("iscsi", &["targetPortal", "iqn"]),
    ("cinder", &["volumeID"]),
    ("fc", &[]),
    ("flexVolume", &["driver"]),
    ("azureFile", &["secretName", "shareName"]),
    ("vsphereVolume", &["volumePath"]),
    ("photonPersistentDisk", &["pdID"]),
    ("portworxVolume", &["volumeID"]),
    ("azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", &["gateway", "system"]),
    ("local", &["path"]),
    ("storageos", &[]),
    ("csi", &[]),
];

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

pub(super) fn persistent_volume(object: &Fields<'_>) {
    metadata::validate(object, false, names::subdomain_name);
    spec(&object.child("spec"), false);
}

/// The spec of a volume; `inline` if it is in a VolumeAttachment.
pub(super) fn spec(spec: &Fields<'_>, inline: bool) {
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
    sources(spec);
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
    attributes_class(spec);
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

fn sources(spec: &Fields<'_>) {
    let mut first = true;
    for (name, required) in SOURCES {
        let Some(source) = spec.given(name) else {
            continue;
        };
        if !first && name != "flexVolume" {
            let shown = if name == "cephfs" { "cephFS" } else { name };
            spec.forbidden(shown, "may not specify more than 1 volume type");
            continue;
        }
        first = false;
        let source = match name {
            "gcePersistentDisk" => source.at_path(spec.path("persistentDisk")),
            _ => source,
        };
        for field in required {
            if source.text(field).is_empty() && source.list(field).is_empty() {
                source.required(field, "");
            }
        }
        match name {
            "hostPath" => host_path(&source),
            "local" => {
                no_backsteps(&source, "path");
                if !spec.has("nodeAffinity") {
                    spec.required("nodeAffinity", "Local volume requires node affinity");
                }
            }
            "nfs" if !source.text("path").starts_with('/') => {
                source.invalid("path", source.text("path"), "must be an absolute path");
            }
            "azureDisk" => azure_disk(&source),
            "csi" => csi_source(&source),
            _ => {}
        }
    }
    if first {
        spec.push(FieldError::required(
            spec.own_path(),
            "must specify a volume type",
        ));
    }
}

/// Path and type of a directory or file of the node.
pub(super) fn host_path(source: &Fields<'_>) {
    if !source.text("path").is_empty() {
        no_backsteps(source, "path");
        source.one_of("type", &HOST_PATH_TYPES);
    }
}

pub(super) fn no_backsteps(source: &Fields<'_>, field: &str) {
    let path = source.text(field);
    if path.split('/').any(|part| part == "..") {
        source.invalid(field, path, "must not contain '..'");
    }
}

fn azure_disk(source: &Fields<'_>) {
    let (prefix, form) = if source.text("kind") == "Managed" {
        let form =
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
        ("/subscriptions/", form)
    } else {
        let form = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
        ("https://", form)
    };
    if !source.text("diskURI").starts_with(prefix) {
        source.one_of("diskURI", &[form]);
    }
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
    persistent_volume(object);
    let spec = object.child("spec");
    let old = object::struct_at(old, "spec");
    let source = |spec: &Object| -> Vec<Value> {
        let mut sources: Vec<Value> = SOURCES
            .iter()
            .map(|(name, _)| spec.get(*name).unwrap_or(&NULL).clone())
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
    if old.contains_key("nodeAffinity") && affinity != at(old, "/nodeAffinity") {
        let why = format!("{IMMUTABLE}, except for updating from beta label to GA");
        unpathed.invalid("nodeAffinity", shown_affinity(affinity), why);
    }
    let class = "volumeAttributesClassName";
    if object::has(old, "/volumeAttributesClassName") && !spec.has(class) {
        spec.forbidden(class, "update from non-nil value to nil is forbidden");
    }
}
