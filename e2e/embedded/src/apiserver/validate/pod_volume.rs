//! Validation of a pod's volumes.

use std::collections::HashSet;

use super::super::field::FieldError;
use super::super::names;
use super::container::{PULL_POLICIES, Volumes, descending_path};
use super::fields::Fields;
use super::{claim, csi_driver_name, environment, volume_source};

/// Volume sources in the order of validation.
const SOURCES: [&str; 30] = [
    "emptyDir",
    "hostPath",
    "gitRepo",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "secret",
    "nfs",
    "iscsi",
    "glusterfs",
    "flocker",
    "persistentVolumeClaim",
    "rbd",
    "cinder",
    "cephfs",
    "quobyte",
    "downwardAPI",
    "fc",
    "flexVolume",
    "configMap",
    "azureFile",
    "vsphereVolume",
    "photonPersistentDisk",
    "portworxVolume",
    "azureDisk",
    "storageos",
    "projected",
    "scaleIO",
    "csi",
    "ephemeral",
    "image",
];
/// The sources of a projected volume whose feature gates are on, in the order of validation.
const PROJECTIONS: [&str; 4] = ["secret", "configMap", "downwardAPI", "serviceAccountToken"];

/// Validates the volumes; returns the valid ones.
pub(super) fn volumes<'a>(pod: &Fields<'a>, spec: &Fields<'a>) -> Volumes<'a> {
    let pod_name = pod.child("metadata").text("name");
    let ephemeral = |volume: &Fields<'_>| volume.has("ephemeral") && !pod_name.is_empty();
    let created = spec.structs("volumes").filter(ephemeral);
    let created: HashSet<String> = created
        .map(|volume| format!("{pod_name}-{}", volume.text("name")))
        .collect();
    let mut valid = Volumes::new();
    for volume in spec.structs("volumes") {
        let before = volume.error_count();
        volume_source::only_one(&volume, &SOURCES, true, |kind, source| {
            validate(kind, source, &volume, pod_name);
        });
        volume.check_required("name", names::dns1123_label);
        let name = volume.text("name");
        if valid.contains_key(name) {
            volume.duplicate("name", name);
        }
        let claim = volume.given("persistentVolumeClaim");
        if volume.error_count() == before {
            valid.insert(name, claim.is_some() || volume.has("ephemeral"));
        }
        if let Some(claim) = claim.filter(|claim| created.contains(claim.text("claimName"))) {
            let why = "must not reference a PVC that gets created for an ephemeral volume";
            claim.invalid("claimName", claim.text("claimName"), why);
        }
    }
    valid
}

fn validate(kind: &str, source: &Fields<'_>, volume: &Fields<'_>, pod_name: &str) {
    match kind {
        "configMap" => {
            source.require("name");
            keys(source);
        }
        "csi" => {
            csi_driver_name(source, "driver");
            if let Some(secret) = source.given("nodePublishSecretRef")
                && !secret.require("name").is_empty()
            {
                // The path of Kubernetes does not name the reference.
                let secret = secret.at_path(source.own_path().clone());
                secret.check("name", names::dns1123_subdomain);
            }
        }
        "downwardAPI" => {
            mode(source, "defaultMode");
            for file in source.structs("items") {
                downward_file(&file.at_path(source.own_path().clone()));
            }
        }
        "emptyDir" => {
            let limit = source.quantity("sizeLimit");
            if limit.is_some_and(|limit| limit.cmp_zero().is_lt()) {
                source.forbidden("sizeLimit", "SizeLimit field must be a valid resource quantity");
            }
        }
        "ephemeral" => {
            match source.given("volumeClaimTemplate") {
                Some(template) => claim::claim_template(&template),
                None => source.required("volumeClaimTemplate", ""),
            }
            claim_name(volume, pod_name);
        }
        "image" => {
            source.require("reference");
            source.one_of("pullPolicy", &PULL_POLICIES);
        }
        "iscsi" => {
            volume_source::validate(kind, source, None);
            let name = volume.text("name");
            if volume_source::is_iscsi_too_long(source, name) {
                volume.invalid("name", name, volume_source::ISCSI_TOO_LONG);
            }
        }
        "projected" => projected(source),
        "secret" => {
            source.require("secretName");
            keys(source);
        }
        _ => volume_source::validate(kind, source, None),
    }
}

/// The name of an ephemeral volume's claim; a missing name gets its own error.
fn claim_name(volume: &Fields<'_>, pod_name: &str) {
    let name = volume.text("name");
    if !pod_name.is_empty() && !name.is_empty() {
        let claim = format!("{pod_name}-{name}");
        for why in names::dns1123_subdomain(&claim) {
            volume.invalid("name", name, format!("PVC name {claim:?}: {why}"));
        }
    }
}

fn mode(owner: &Fields<'_>, field: &str) {
    let why = "must be a number between 0 and 0777 (octal), both inclusive";
    owner.in_range(field, 0..=0o777, why);
}

/// The keys of a Secret or ConfigMap that are files of the volume.
fn keys(source: &Fields<'_>) {
    mode(source, "defaultMode");
    source.structs("items").for_each(|item| key_to_path(&item));
}

fn key_to_path(item: &Fields<'_>) {
    item.require("key");
    item.require("path");
    local_path(item, "path");
    mode(item, "mode");
}

/// A path in the volume that does not begin with two dots.
fn local_path(owner: &Fields<'_>, field: &str) {
    descending_path(owner, field);
    let path = owner.text(field);
    if path.starts_with("..") && !path.starts_with("../") {
        owner.invalid(field, path, "must not start with '..'");
    }
}

/// A file of the downward API; as upstream, the errors' paths do not name it.
fn downward_file(file: &Fields<'_>) {
    file.require("path");
    local_path(file, "path");
    match (file.given("fieldRef"), file.given("resourceFieldRef")) {
        (Some(reference), other) => {
            environment::field_ref(&reference, &environment::VOLUME_FIELDS);
            if other.is_some() {
                let why = "fieldRef and resourceFieldRef can not be specified simultaneously";
                file.push(FieldError::invalid(file.own_path(), "resource", why));
            }
        }
        (None, Some(reference)) => environment::resource_field_ref_of_volume(&reference),
        (None, None) => {
            let why = "one of fieldRef and resourceFieldRef is required";
            file.push(FieldError::required(file.own_path(), why));
        }
    }
    mode(file, "mode");
}

fn projected(volume: &Fields<'_>) {
    mode(volume, "defaultMode");
    let mut paths = HashSet::new();
    let mut unique = |path: &str, shown: &str| {
        if !path.is_empty() && !paths.insert(path.to_owned()) {
            let why = "conflicting duplicate paths";
            volume.push(FieldError::invalid(volume.own_path(), shown, why));
        }
    };
    for source in volume.structs("sources") {
        let given: Vec<&str> = PROJECTIONS.into_iter().filter(|kind| source.has(kind)).collect();
        for kind in &given {
            let projection = source.child(kind);
            match *kind {
                "serviceAccountToken" => service_account_token(volume, &projection),
                "downwardAPI" => {
                    for file in projection.structs("items") {
                        downward_file(&file.at_path(projection.own_path().clone()));
                        unique(file.text("path"), file.text("path"));
                    }
                }
                _ => {
                    let name = projection.require("name");
                    for item in projection.structs("items") {
                        key_to_path(&item);
                        unique(item.text("path"), name);
                    }
                }
            }
        }
        if given.len() > 1 {
            let why = "may not specify more than 1 volume type per source";
            source.push(FieldError::forbidden(source.own_path(), why));
        }
    }
}

/// As upstream, the path of errors about the token's path is the volume's.
fn service_account_token(volume: &Fields<'_>, token: &Fields<'_>) {
    let field = "expirationSeconds";
    let why = "may not specify a duration less than 10 minutes";
    token.in_range(field, 600.., why);
    let why = "may not specify a duration larger than 2^32 seconds";
    token.in_range(field, ..=1 << 32, why);
    let token = token.at_path(volume.own_path().clone());
    if !token.require("path").is_empty() {
        local_path(&token, "path");
    }
}

/// The token of a service account needs the account's name, which only mirror pods can lack.
pub(super) fn no_tokens_without_account(spec: &Fields<'_>) {
    if !spec.text("serviceAccountName").is_empty() {
        return;
    }
    let sources = spec
        .structs("volumes")
        .flat_map(|volume| volume.child("projected").structs("sources"));
    for source in sources.filter(|source| source.has("serviceAccountToken")) {
        let why = "must not be specified when serviceAccountName is not set";
        source.forbidden("serviceAccountToken", why);
    }
}
