//! Validation of PersistentVolumes and of the sources of volumes.

use serde_json::Value;

use super::super::field::{FieldError, IMMUTABLE, Path};
use super::super::names;
use super::super::object::{self, NULL, Object, at};
use super::super::schema;
use super::fields::{Fields, amount, sorted};
use super::{csi_driver_name, node_selector};

const ACCESS_MODES: [&str; 4] = [
    "ReadOnlyMany",
    "ReadWriteMany",
    "ReadWriteOnce",
    "ReadWriteOncePod",
];
pub(super) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];
const SOURCE: &str = "PersistentVolumeSource";

/// The spec of a PersistentVolume, or of an inline volume of a VolumeAttachment.
pub(super) fn spec(spec: &Fields<'_>, is_inline: bool) {
    if is_inline {
        inline(spec);
    } else {
        capacity(spec);
        let policies = ["Delete", "Recycle", "Retain"];
        if !spec.text("persistentVolumeReclaimPolicy").is_empty() {
            spec.one_of("persistentVolumeReclaimPolicy", &policies);
        }
        if let Some(affinity) = spec.given("nodeAffinity") {
            match affinity.given("required") {
                Some(selector) => node_selector(&selector),
                None => affinity.required("required", "must specify required node constraints"),
            }
        }
        spec.check_given("storageClassName", names::dns1123_subdomain);
        if spec.has("volumeMode") {
            spec.one_of("volumeMode", &VOLUME_MODES);
        }
        let class = "volumeAttributesClassName";
        if spec.has(class) {
            spec.check_required(class, names::dns1123_subdomain);
            if !spec.has("csi") {
                spec.required("csi", "has to be specified when using volumeAttributesClassName");
            }
        }
    }
    if spec.list("accessModes").is_empty() {
        spec.required("accessModes", "");
    }
    access_modes(spec);
    only_one_source(spec, SOURCE);
    if let Some(source) = spec.given("csi") {
        csi_source(&source);
    }
}

/// What an inline volume must not have.
fn inline(spec: &Fields<'_>) {
    let why = "may not be specified in the context of inline volumes";
    for field in ["claimRef", "capacity", "nodeAffinity", "storageClassName"] {
        let value = spec.get(field);
        if !value.is_null() && *value != "" && value.as_object().is_none_or(|value| !value.is_empty()) {
            spec.forbidden(field, why);
        }
    }
    for (field, allowed) in [
        ("persistentVolumeReclaimPolicy", "Retain"),
        ("volumeMode", "Filesystem"),
    ] {
        if !spec.text(field).is_empty() && spec.text(field) != allowed {
            spec.forbidden(
                field,
                format!("may only be {allowed} in the context of inline volumes"),
            );
        }
    }
    if !spec.has("csi") {
        spec.required("csi", "has to be specified in the context of inline volumes");
    }
}

/// Access modes of a volume or a claim.
pub(super) fn access_modes(spec: &Fields<'_>) {
    let modes: Vec<&str> = spec.texts("accessModes").collect();
    for mode in &modes {
        spec.supported("accessModes", mode, &ACCESS_MODES);
    }
    let is_once_pod = |mode: &&str| *mode == "ReadWriteOncePod";
    if modes.iter().any(is_once_pod) && !modes.iter().all(is_once_pod) {
        let why = "may not use ReadWriteOncePod with other access modes";
        spec.forbidden("accessModes", why);
    }
}

fn capacity(spec: &Fields<'_>) {
    if spec.entries("capacity").count() != 1 || !spec.child("capacity").has("storage") {
        let value = sorted(spec.get("capacity"));
        spec.push(FieldError::not_supported(
            &spec.path("capacity"),
            value,
            &["storage"],
        ));
    }
    for (name, value) in spec.entries("capacity") {
        if amount(value).is_some_and(|amount| amount.cmp_zero().is_le()) {
            let path = spec.path("capacity").key(name);
            let why = "must be greater than zero";
            spec.push(FieldError::invalid(&path, value.clone(), why));
        }
    }
}

/// Adds an error if a quantity is negative.
pub(super) fn not_negative(owner: &Fields<'_>, path: &Path, value: &Value) {
    if amount(value).is_some_and(|amount| amount.cmp_zero().is_lt()) {
        let why = "must be greater than or equal to 0";
        owner.push(FieldError::invalid(path, value.clone(), why));
    }
}

/// Checks that a volume has exactly one of the sources in a Go struct.
pub(super) fn only_one_source(volume: &Fields<'_>, sources: &str) {
    let mut given = schema::of("", sources)
        .declared
        .iter()
        .filter(|field| volume.has(field.name));
    if given.next().is_none() {
        let why = "must specify a volume type";
        volume.push(FieldError::required(volume.own_path(), why));
    }
    for field in given {
        volume.forbidden(field.name, "may not specify more than 1 volume type");
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

pub(super) fn update(object: &Fields<'_>, old: &Object) {
    let spec_fields = object.child("spec");
    spec(&spec_fields, false);
    let old = object::struct_at(old, "spec");
    for field in &schema::of("", SOURCE).declared {
        let (mut before, mut after) = (
            old.get(field.name).unwrap_or(&NULL).clone(),
            spec_fields.get(field.name).clone(),
        );
        // A secret for expansion may be added.
        if !object::has(old, "/csi/controllerExpandSecretRef") {
            for source in [&mut before, &mut after]
                .into_iter()
                .filter_map(Value::as_object_mut)
            {
                source.remove("controllerExpandSecretRef");
            }
        }
        if before != after {
            spec_fields.forbidden(field.name, "the source of a volume is immutable after creation");
        }
    }
    spec_fields.immutable(old, "volumeMode");
    if object::has(old, "/nodeAffinity") && spec_fields.get("nodeAffinity") != at(old, "/nodeAffinity") {
        spec_fields.invalid("nodeAffinity", spec_fields.get("nodeAffinity").clone(), IMMUTABLE);
    }
    let class = "volumeAttributesClassName";
    if object::has(old, "/volumeAttributesClassName") && !spec_fields.has(class) {
        spec_fields.forbidden(class, "update from non-nil value to nil is forbidden");
    }
}
