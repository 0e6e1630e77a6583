//! Annotations and matching rules for binding claims and volumes.

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};

use crate::node_selector;
use crate::quantity;

/// Marks a claim or volume that the controller, not a user, bound.
pub(crate) const ANN_BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Marks a claim whose binding is complete.
pub(crate) const ANN_BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Names the provisioner of a volume.
pub(crate) const ANN_MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
pub(crate) const ANN_PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The provisioner that a claim waits for.
pub(crate) const ANN_STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(crate) const ANN_BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// Marks the default class.
pub(crate) const ANN_IS_DEFAULT_CLASS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
/// The node that the scheduler chose for the first consumer.
pub(crate) const ANN_SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The claim's class; empty if it has none.
pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> &str {
    claim
        .spec
        .as_ref()
        .and_then(|spec| spec.storage_class_name.as_deref())
        .unwrap_or_default()
}

pub(crate) fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn volume_annotation<'a>(volume: &'a PersistentVolume, key: &str) -> Option<&'a str> {
    volume.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

pub(crate) fn volume_phase(volume: &PersistentVolume) -> &str {
    volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(crate) fn requested_bytes(claim: &PersistentVolumeClaim) -> i64 {
    claim
        .spec
        .as_ref()
        .and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .and_then(quantity::bytes)
        .unwrap_or_default()
}

/// Whether the volume's claimRef has this claim's name, and its UID or no UID.
pub(crate) fn is_volume_bound_to_claim(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let Some(owner) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) else {
        return false;
    };
    owner.name == claim.metadata.name
        && owner.namespace == claim.metadata.namespace
        && owner
            .uid
            .as_ref()
            .is_none_or(|uid| uid.is_empty() || Some(uid) == claim.metadata.uid.as_ref())
}

/// The best volume for the claim: one pre-bound to it, else the smallest that fits. With a node, only volumes
/// that the node can access.
pub(crate) fn find_matching_volume<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    node: Option<&Node>,
    only_prebound: bool,
) -> Option<&'a PersistentVolume> {
    let mut best: Option<(i64, &PersistentVolume)> = None;
    for volume in volumes {
        if !could_serve(claim, volume) {
            continue;
        }
        let reachable = node.is_none_or(|node| is_reachable(volume, node));
        if is_volume_bound_to_claim(volume, claim) {
            if reachable {
                return Some(volume);
            }
            continue;
        }
        let free = volume.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_none())
            && volume_phase(volume) == "Available";
        if only_prebound || !free || !reachable {
            continue;
        }
        let size = capacity(volume);
        if best.is_none_or(|(smallest, _)| size < smallest) {
            best = Some((size, volume));
        }
    }
    best.map(|(_, volume)| volume)
}

/// Whether the node can access the volume, by the volume's node affinity.
pub(crate) fn is_reachable(volume: &PersistentVolume, node: &Node) -> bool {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref())
        .is_none_or(|required| node_selector::matches(required, node))
}

fn capacity(volume: &PersistentVolume) -> i64 {
    volume
        .spec
        .as_ref()
        .and_then(|spec| spec.capacity.as_ref()?.get("storage"))
        .and_then(quantity::bytes)
        .unwrap_or_default()
}

/// The reason that the volume does not satisfy the claim; `None` if it does (`checkVolumeSatisfyClaim`).
pub(crate) fn mismatch(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<String> {
    let wanted = claim.spec.clone().unwrap_or_default();
    let offered = volume.spec.clone().unwrap_or_default();
    let mode = |mode: Option<String>| mode.unwrap_or_else(|| "Filesystem".to_owned());
    let attributes = |class: Option<String>| class.unwrap_or_default();
    let offered_modes = offered.access_modes.unwrap_or_default();
    let mut wanted_modes = wanted.access_modes.iter().flatten();
    let why = if volume.metadata.deletion_timestamp.is_some() {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        return Some(format!("the volume is marked for deletion {name:?}"));
    } else if capacity(volume) < requested_bytes(claim) {
        "requested PV is too small"
    } else if offered.storage_class_name.as_deref().unwrap_or_default() != class_name(claim) {
        "storageClassName does not match"
    } else if attributes(wanted.volume_attributes_class_name)
        != attributes(offered.volume_attributes_class_name)
    {
        "volumeAttributesClassName does not match"
    } else if mode(offered.volume_mode) != mode(wanted.volume_mode) {
        "incompatible volumeMode"
    } else if !wanted_modes.all(|mode| offered_modes.contains(mode)) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn could_serve(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    mismatch(claim, volume).is_none()
        && node_selector::label_selector_matches(selector, volume.metadata.labels.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unsuitable_volume_is_reported_with_the_reason() {
        let claim = mk_claim();
        let cases = [
            ("/spec/capacity/storage", json!("1Gi"), None),
            (
                "/metadata/deletionTimestamp",
                json!("2026-01-01T00:00:00Z"),
                Some("the volume is marked for deletion \"v\""),
            ),
            (
                "/spec/capacity/storage",
                json!("1Mi"),
                Some("requested PV is too small"),
            ),
            (
                "/spec/storageClassName",
                json!("fast"),
                Some("storageClassName does not match"),
            ),
            (
                "/spec/volumeAttributesClassName",
                json!("gold"),
                Some("volumeAttributesClassName does not match"),
            ),
            (
                "/spec/volumeMode",
                json!("Block"),
                Some("incompatible volumeMode"),
            ),
            (
                "/spec/accessModes",
                json!(["ReadOnlyMany"]),
                Some("incompatible accessMode"),
            ),
        ];
        for (pointer, value, expected) in cases {
            let volume = mk_volume("v", "1Gi", |volume| {
                let (parent, field) = pointer.rsplit_once('/').unwrap();
                volume.pointer_mut(parent).unwrap()[field] = value.clone();
            });
            assert_eq!(mismatch(&claim, &volume).as_deref(), expected, "{pointer}");
        }
    }

    fn mk_claim() -> PersistentVolumeClaim {
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "uid-c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
                "storageClassName": ""},
        }))
        .unwrap()
    }

    fn mk_volume(name: &str, size: &str, change: impl Fn(&mut serde_json::Value)) -> PersistentVolume {
        let mut volume = serde_json::json!({
            "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                "csi": {"driver": "d", "volumeHandle": name}},
            "status": {"phase": "Available"},
        });
        change(&mut volume);
        serde_json::from_value(volume).unwrap()
    }

    #[test]
    fn smallest_suitable_volume_is_bound_unless_one_names_the_claim() {
        let plain = |_: &mut serde_json::Value| {};
        let volumes = [
            mk_volume("too-small", "500Mi", plain),
            mk_volume("big", "10Gi", plain),
            mk_volume("fits", "2Gi", plain),
            mk_volume("other-mode", "1Gi", |v| {
                v["spec"]["accessModes"] = serde_json::json!(["ReadOnlyMany"])
            }),
            mk_volume("block", "1Gi", |v| {
                v["spec"]["volumeMode"] = serde_json::json!("Block")
            }),
            mk_volume("classy", "1Gi", |v| {
                v["spec"]["storageClassName"] = serde_json::json!("fast")
            }),
            mk_volume("released", "1Gi", |v| {
                v["status"]["phase"] = serde_json::json!("Released")
            }),
        ];
        let claim = mk_claim();
        let found = |volumes: &[PersistentVolume], only_prebound| {
            find_matching_volume(&claim, volumes, None, only_prebound)
                .and_then(|volume| volume.metadata.name.clone())
        };
        assert_eq!(found(&volumes, false).as_deref(), Some("fits"));
        assert_eq!(found(&volumes, true), None);

        let mut named = volumes.to_vec();
        named.push(mk_volume("named", "20Gi", |v| {
            v["spec"]["claimRef"] = serde_json::json!({"namespace": "default", "name": "data"});
        }));
        assert_eq!(found(&named, false).as_deref(), Some("named"));
        assert_eq!(found(&named, true).as_deref(), Some("named"));
    }

    #[test]
    fn volume_of_an_earlier_claim_of_the_same_name_is_not_bound() {
        let volume = mk_volume("v", "1Gi", |v| {
            v["spec"]["claimRef"] =
                serde_json::json!({"namespace": "default", "name": "data", "uid": "uid-before"});
        });
        assert!(!is_volume_bound_to_claim(&volume, &mk_claim()));
        assert!(find_matching_volume(&mk_claim(), [&volume], None, false).is_none());
    }
}
