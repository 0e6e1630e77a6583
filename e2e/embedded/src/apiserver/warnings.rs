//! Warnings for the client that writes an object (`WarningsOnCreate` and `WarningsOnUpdate` of a kind's strategy).

use serde_json::Value;

use super::object::{self, Object, list, text};
use super::resource::Kind;
use super::strategy::Part;
use crate::quantity::Quantity;

/// Warnings about a new object.
pub(crate) fn create(kind: Kind, object: &Object) -> Vec<String> {
    let mut warnings = Vec::new();
    if kind == Kind::Pod && object::name(object).contains('.') {
        warnings.push(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
             recommended: [must not contain dots]"
                .to_owned(),
        );
    }
    if kind == Kind::CsiDriver {
        warnings.extend(csi_driver(object));
    }
    warnings.extend(of_object(kind, object));
    warnings
}

/// Warnings about a changed object.
pub(crate) fn update(kind: Kind, part: Part, object: &Object, old: &Object) -> Vec<String> {
    if part != Part::Main {
        return Vec::new();
    }
    let requests = "/spec/tokenRequests";
    if kind == Kind::CsiDriver && object::at(object, requests) != object::at(old, requests) {
        return csi_driver(object).into_iter().collect();
    }
    of_object(kind, object)
}

fn of_object(kind: Kind, object: &Object) -> Vec<String> {
    match kind {
        Kind::PersistentVolume => {
            let mut warnings = Vec::new();
            if text(object, "/spec/persistentVolumeReclaimPolicy") == "Recycle" {
                warnings.push(
                    "spec.persistentVolumeReclaimPolicy: The Recycle reclaim policy is deprecated. Instead, the \
                     recommended approach is to use dynamic provisioning."
                        .to_owned(),
                );
            }
            warnings
        }
        Kind::PersistentVolumeClaim => claim_spec(object, "spec"),
        Kind::Pod => pod(object),
        Kind::CsiNode
        | Kind::CsiDriver
        | Kind::CsiStorageCapacity
        | Kind::Event
        | Kind::Lease
        | Kind::Namespace
        | Kind::Node
        | Kind::Secret
        | Kind::ServiceAccount
        | Kind::StorageClass
        | Kind::VolumeAttachment => Vec::new(),
    }
}

fn csi_driver(object: &Object) -> Option<String> {
    let requests = !list(object, "/spec/tokenRequests").is_empty();
    if !requests || object::has(object, "/spec/serviceAccountTokenInSecrets") {
        return None;
    }
    let warning = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent \
                   possible logging of tokens in volume attributes";
    Some(warning.to_owned())
}

/// Amounts of a claim that are no whole number of bytes.
fn claim_spec(owner: &Object, path: &str) -> Vec<String> {
    let amounts = ["requests", "limits"].into_iter().filter_map(|list| {
        let pointer = format!("/spec/resources/{list}/storage");
        fractional(owner, &pointer, &format!("{path}.resources.{list}[storage]"))
    });
    amounts.collect()
}

fn fractional(object: &Object, pointer: &str, field: &str) -> Option<String> {
    let value = text(object, pointer);
    let is_fractional = Quantity::parse(value).is_some_and(|amount| !amount.is_whole());
    is_fractional.then(|| format!("{field}: fractional byte value {value:?} is invalid, must be an integer"))
}

fn pod(object: &Object) -> Vec<String> {
    let mut warnings = Vec::new();
    for (index, volume) in list(object, "/spec/volumes").iter().enumerate() {
        let template = volume
            .pointer("/ephemeral/volumeClaimTemplate")
            .and_then(Value::as_object);
        let path = format!("spec.volumes[{index}].ephemeral.volumeClaimTemplate.spec");
        warnings.extend(
            template
                .into_iter()
                .flat_map(|template| claim_spec(template, &path)),
        );
    }
    warnings
}
