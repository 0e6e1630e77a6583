//! Validation of PersistentVolumes.

use serde_json::Value;

use super::super::field::{Errors, FieldError, IMMUTABLE, Path};
use super::super::names;
use super::super::object::{self, Object, at, entries, text};
use super::{
    amount, csi_driver_name, each, immutable, metadata, node_selector, one_of, shown_affinity, texts,
};

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
pub(super) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Volume sources in the order in which they are looked at: field, name in paths of errors about the source and
/// about its fields, required fields.
const SOURCES: [(&str, &str, &str, &[&str]); 22] = [
    ("hostPath", "hostPath", "hostPath", &["path"]),
    (
        "gcePersistentDisk",
        "gcePersistentDisk",
        "persistentDisk",
        &["pdName"],
    ),
    (
        "awsElasticBlockStore",
        "awsElasticBlockStore",
        "awsElasticBlockStore",
        &["volumeID"],
    ),
    ("glusterfs", "glusterfs", "glusterfs", &["endpoints", "path"]),
    ("flocker", "flocker", "flocker", &[]),
    ("nfs", "nfs", "nfs", &["server", "path"]),
    ("rbd", "rbd", "rbd", &["monitors", "image"]),
    ("quobyte", "quobyte", "quobyte", &["registry", "volume"]),
    ("cephfs", "cephFS", "cephfs", &["monitors"]),
    ("iscsi", "iscsi", "iscsi", &["targetPortal", "iqn"]),
    ("cinder", "cinder", "cinder", &["volumeID"]),
    ("fc", "fc", "fc", &[]),
    ("flexVolume", "flexVolume", "flexVolume", &["driver"]),
    (
        "azureFile",
        "azureFile",
        "azureFile",
        &["secretName", "shareName"],
    ),
    ("vsphereVolume", "vsphereVolume", "vsphereVolume", &["volumePath"]),
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "photonPersistentDisk",
        &["pdID"],
    ),
    (
        "portworxVolume",
        "portworxVolume",
        "portworxVolume",
        &["volumeID"],
    ),
    ("azureDisk", "azureDisk", "azureDisk", &["diskName", "diskURI"]),
    ("scaleIO", "scaleIO", "scaleIO", &["gateway", "system"]),
    ("local", "local", "local", &["path"]),
    ("storageos", "storageos", "storageos", &[]),
    ("csi", "csi", "csi", &[]),
];

pub(super) fn persistent_volume(object: &Object, errors: &mut Errors) {
    metadata::validate(object, false, names::subdomain_name, errors);
    let Some(pv) = object.get("spec").and_then(Value::as_object) else {
        return spec(&Object::new(), false, &Path::new("spec"), errors);
    };
    spec(pv, false, &Path::new("spec"), errors);
}

/// The spec of a volume; `inline` if it is in a VolumeAttachment.
pub(super) fn spec(spec: &Object, inline: bool, path: &Path, errors: &mut Errors) {
    if inline {
        only_inline(spec, path, errors);
    }
    if object::list(spec, "/accessModes").is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    access_modes(spec, path, errors);
    if !inline {
        capacity(spec, path, errors);
    }
    let policy = text(spec, "/persistentVolumeReclaimPolicy");
    let field = path.child("persistentVolumeReclaimPolicy");
    if !policy.is_empty() && !inline {
        one_of(errors, &field, policy, &["Delete", "Recycle", "Retain"]);
    } else if !policy.is_empty() && policy != "Retain" {
        let why = "may only be Retain in the context of inline volumes";
        errors.push(FieldError::forbidden(&field, why));
    }
    node_affinity(spec, inline, path, errors);
    sources(spec, path, errors);
    let class = text(spec, "/storageClassName");
    if !class.is_empty() {
        let field = path.child("storageClassName");
        if inline {
            let why = "may not be specified in the context of inline volumes";
            errors.push(FieldError::forbidden(&field, why));
        } else {
            each(errors, &field, class, names::dns1123_subdomain(class));
        }
    }
    if let Some(mode) = at(spec, "/volumeMode").as_str() {
        let field = path.child("volumeMode");
        if !inline {
            one_of(errors, &field, mode, &VOLUME_MODES);
        } else if mode != "Filesystem" {
            let why = "may not specify volumeMode other than Filesystem in the context of inline volumes";
            errors.push(FieldError::forbidden(&field, why));
        }
    }
    attributes_class(spec, path, errors);
}

fn only_inline(spec: &Object, path: &Path, errors: &mut Errors) {
    let why = "may not be specified in the context of inline volumes";
    if object::has(spec, "/claimRef") {
        errors.push(FieldError::forbidden(&path.child("claimRef"), why));
    }
    if entries(spec, "/capacity").next().is_some() {
        errors.push(FieldError::forbidden(&path.child("capacity"), why));
    }
    if !object::has(spec, "/csi") {
        let why = "has to be specified in the context of inline volumes";
        errors.push(FieldError::required(&path.child("csi"), why));
    }
}

/// Access modes of a volume or a claim.
pub(super) fn access_modes(spec: &Object, path: &Path, errors: &mut Errors) {
    let field = path.child("accessModes");
    let (mut once_pod, mut other) = (false, false);
    for mode in texts(spec, "/accessModes") {
        one_of(errors, &field, mode, &ACCESS_MODES);
        if mode == "ReadWriteOncePod" {
            once_pod = true;
        } else if ACCESS_MODES.contains(&mode) {
            other = true;
        }
    }
    if once_pod && other {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&field, why));
    }
}

fn capacity(spec: &Object, path: &Path, errors: &mut Errors) {
    let field = path.child("capacity");
    let count = entries(spec, "/capacity").count();
    if count == 0 {
        errors.push(FieldError::required(&field, ""));
    }
    if !object::has(spec, "/capacity/storage") || count > 1 {
        let mut amounts: Vec<(&String, &Value)> = entries(spec, "/capacity").collect();
        amounts.sort_unstable_by_key(|(name, _)| *name);
        let amounts = amounts
            .into_iter()
            .map(|(name, value)| (name.clone(), value.clone()));
        let value = if object::has(spec, "/capacity") {
            Value::Object(amounts.collect())
        } else {
            Value::Null
        };
        errors.push(FieldError::not_supported(&field, value, &["storage"]));
    }
    for (name, value) in entries(spec, "/capacity") {
        let field = field.key(name);
        let parsed = amount(value);
        if parsed.is_some_and(|amount| amount.cmp_zero().is_lt()) {
            let whole = whole_units(value);
            errors.push(FieldError::invalid(
                &field,
                whole,
                "must be a valid resource quantity",
            ));
        }
        if parsed.is_some_and(|amount| amount.cmp_zero().is_le()) {
            errors.push(FieldError::invalid(
                &field,
                value.clone(),
                "must be greater than zero",
            ));
        }
    }
}

/// What Go's `Quantity.Value` gives.
pub(super) fn whole_units(value: &Value) -> i64 {
    amount(value).map_or(0, super::super::quantity::Quantity::whole_units)
}

fn node_affinity(spec: &Object, inline: bool, path: &Path, errors: &mut Errors) {
    let field = path.child("nodeAffinity");
    let Some(affinity) = at(spec, "/nodeAffinity").as_object() else {
        return;
    };
    if inline {
        let why = "may not be specified in the context of inline volumes";
        errors.push(FieldError::forbidden(&field, why));
        return;
    }
    match affinity.get("required").and_then(Value::as_object) {
        Some(selector) => node_selector(errors, &field.child("required"), selector),
        None => {
            let why = "must specify required node constraints";
            errors.push(FieldError::required(&field.child("required"), why));
        }
    }
}

fn sources(spec: &Object, path: &Path, errors: &mut Errors) {
    let mut first = true;
    for (name, shown, fields_shown, required) in SOURCES {
        let Some(source) = at(spec, &format!("/{name}")).as_object() else {
            continue;
        };
        if !first && name != "flexVolume" {
            let why = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(&path.child(shown), why));
            continue;
        }
        first = false;
        let (of_spec, path) = (path, path.child(fields_shown));
        for field in required {
            let value = at(source, &format!("/{field}"));
            let empty =
                value.as_str().is_none_or(str::is_empty) && value.as_array().is_none_or(Vec::is_empty);
            if empty {
                errors.push(FieldError::required(&path.child(field), ""));
            }
        }
        if name == "hostPath" {
            host_path(source, &path, errors);
        }
        if name == "local" {
            no_backsteps(source, &path, errors);
            if !object::has(spec, "/nodeAffinity") {
                let why = "Local volume requires node affinity";
                errors.push(FieldError::required(&of_spec.child("nodeAffinity"), why));
            }
        }
        if name == "nfs" && !text(source, "/path").starts_with('/') {
            let value = text(source, "/path");
            errors.push(FieldError::invalid(
                &path.child("path"),
                value,
                "must be an absolute path",
            ));
        }
        if name == "azureDisk" {
            azure_disk(source, &path, errors);
        }
        if name == "csi" {
            csi_source(source, &path, errors);
        }
    }
    if first {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
}

/// Path and type of a directory or file of the node.
pub(super) fn host_path(source: &Object, path: &Path, errors: &mut Errors) {
    let supported = [
        "",
        "BlockDevice",
        "CharDevice",
        "Directory",
        "DirectoryOrCreate",
        "File",
        "FileOrCreate",
        "Socket",
    ];
    if text(source, "/path").is_empty() {
        return;
    }
    no_backsteps(source, path, errors);
    let kind = text(source, "/type");
    if !supported.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("type"), kind, &supported));
    }
}

fn no_backsteps(source: &Object, path: &Path, errors: &mut Errors) {
    let value = text(source, "/path");
    if value.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(
            &path.child("path"),
            value,
            "must not contain '..'",
        ));
    }
}

fn azure_disk(source: &Object, path: &Path, errors: &mut Errors) {
    let (prefix, form) = if text(source, "/kind") == "Managed" {
        let form =
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
        ("/subscriptions/", form)
    } else {
        let form = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
        ("https://", form)
    };
    let uri = text(source, "/diskURI");
    if !uri.starts_with(prefix) {
        errors.push(FieldError::not_supported(&path.child("diskURI"), uri, &[form]));
    }
}

fn csi_source(source: &Object, path: &Path, errors: &mut Errors) {
    csi_driver_name(errors, &path.child("driver"), text(source, "/driver"));
    if text(source, "/volumeHandle").is_empty() {
        errors.push(FieldError::required(&path.child("volumeHandle"), ""));
    }
    for name in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let Some(reference) = at(source, &format!("/{name}")).as_object() else {
            continue;
        };
        for (field, check) in [
            ("name", names::dns1123_subdomain as fn(&str) -> Vec<String>),
            ("namespace", names::dns1123_label),
        ] {
            let path = path.child(name).child(field);
            let value = text(reference, &format!("/{field}"));
            if value.is_empty() {
                errors.push(FieldError::required(&path, ""));
            } else {
                each(errors, &path, value, check(value));
            }
        }
    }
}

fn attributes_class(spec: &Object, path: &Path, errors: &mut Errors) {
    let Some(class) = at(spec, "/volumeAttributesClassName").as_str() else {
        return;
    };
    let field = path.child("volumeAttributesClassName");
    if class.is_empty() {
        errors.push(FieldError::required(&field, "an empty string is disallowed"));
    } else {
        each(errors, &field, class, names::dns1123_subdomain(class));
    }
    if !object::has(spec, "/csi") {
        let why = "has to be specified when using volumeAttributesClassName";
        errors.push(FieldError::required(&path.child("csi"), why));
    }
}

pub(super) fn persistent_volume_update(object: &Object, old: &Object, errors: &mut Errors) {
    // Kubernetes validates the new object twice: once by itself, once as a part of the update.
    persistent_volume(object, errors);
    persistent_volume(object, errors);
    let source = |object: &Object| -> Vec<Value> {
        let mut sources: Vec<Value> = SOURCES
            .iter()
            .map(|(name, ..)| at(object, &format!("/spec/{name}")).clone())
            .collect();
        // A secret for expansion may be added.
        if !object::has(old, "/spec/csi/controllerExpandSecretRef")
            && let Some(Value::Object(csi)) = sources.last_mut()
        {
            csi.remove("controllerExpandSecretRef");
        }
        sources
    };
    if source(object) != source(old) {
        let path = Path::new("spec").child("persistentvolumesource");
        let why = "spec.persistentvolumesource is immutable after creation\n";
        errors.push(FieldError::forbidden(&path, why));
    }
    immutable(errors, &Path::new("volumeMode"), object, old, "/spec/volumeMode");
    let affinity = at(object, "/spec/nodeAffinity");
    if object::has(old, "/spec/nodeAffinity") && affinity != at(old, "/spec/nodeAffinity") {
        let why = format!("{IMMUTABLE}, except for updating from beta label to GA");
        let shown = shown_affinity(affinity);
        errors.push(FieldError::invalid(&Path::new("nodeAffinity"), shown, why));
    }
    let class = "/spec/volumeAttributesClassName";
    if object::has(old, class) && !object::has(object, class) {
        let path = Path::new("spec").child("volumeAttributesClassName");
        let why = "update from non-nil value to nil is forbidden";
        errors.push(FieldError::forbidden(&path, why));
    }
}
