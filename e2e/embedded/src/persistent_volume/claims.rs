//! Annotations and matching rules for binding claims and volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;

use crate::node_selector;
use crate::quantity;
use crate::volume::ANN_BETA_STORAGE_CLASS;

/// Marks a claim or volume that the controller, not a user, bound.
pub(crate) const ANN_BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
/// Marks a claim whose binding is complete.
pub(crate) const ANN_BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// The CSI driver that replaced the in-tree plugin of a volume.
pub(crate) const ANN_MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// The provisioner of a volume.
pub(crate) const ANN_PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// The provisioner that a claim waits for.
pub(crate) const ANN_STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
pub(crate) const ANN_BETA_STORAGE_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// The node that the scheduler chose for the first consumer.
pub(crate) const ANN_SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Provisioner of a class whose volumes are only created by hand.
pub(crate) const NOT_SUPPORTED_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// The claim's class; empty if it has none.
pub(crate) fn class_name(claim: &PersistentVolumeClaim) -> &str {
    let spec = claim.spec.as_ref();
    annotation(claim, ANN_BETA_STORAGE_CLASS)
        .or_else(|| spec?.storage_class_name.as_deref())
        .unwrap_or_default()
}

fn class_of_volume(volume: &PersistentVolume) -> &str {
    let spec = volume.spec.as_ref();
    annotation(volume, ANN_BETA_STORAGE_CLASS)
        .or_else(|| spec?.storage_class_name.as_deref())
        .unwrap_or_default()
}

pub(crate) fn annotation<'a>(object: &'a impl ResourceExt, key: &str) -> Option<&'a str> {
    object.annotations().get(key).map(String::as_str)
}

pub(crate) fn claim_phase(claim: &PersistentVolumeClaim) -> &str {
    claim
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

pub(crate) fn volume_phase(volume: &PersistentVolume) -> &str {
    volume
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// Whether the claims of the class are bound when a pod that uses them is scheduled.
pub(crate) fn is_delay_binding_mode(class: &StorageClass) -> bool {
    class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")
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

/// The PV controller's choice among all volumes: those with the fewest access modes that the claim asks for come first
/// (`findByClaim`).
pub(crate) fn find_by_claim<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    only_prebound: bool,
) -> Option<&'a PersistentVolume> {
    let mut by_modes: BTreeMap<usize, Vec<&PersistentVolume>> = BTreeMap::new();
    for volume in volumes {
        if has_access_modes(claim, volume) {
            let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
            by_modes
                .entry(modes.map_or(0, Vec::len))
                .or_default()
                .push(volume);
        }
    }
    by_modes
        .into_values()
        .find_map(|volumes| find_matching_volume(claim, volumes, None, only_prebound))
}

/// The best volume for the claim: one pre-bound to it, even of another class, else the smallest that fits. With a node, only
/// volumes that the node can access; `None` if it cannot access the pre-bound one (`FindMatchingVolume`).
pub(crate) fn find_matching_volume<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a PersistentVolume>,
    node: Option<&Node>,
    only_prebound: bool,
) -> Option<&'a PersistentVolume> {
    let requested = requested_bytes(claim);
    let mut best: Option<(i64, &PersistentVolume)> = None;
    for volume in volumes {
        let spec = volume.spec.as_ref();
        let (is_free, is_bound) = (
            spec.is_some_and(|spec| spec.claim_ref.is_none()),
            is_volume_bound_to_claim(volume, claim),
        );
        if !(is_free || is_bound) {
            continue;
        }
        let size = capacity(volume);
        let fits = size >= requested
            && has_mode(claim, volume)
            && has_attributes_class(claim, volume)
            && volume.metadata.deletion_timestamp.is_none();
        if !fits {
            continue;
        }
        let reachable = node.is_none_or(|node| is_reachable(volume, node));
        // As upstream, the scheduler does not check the access modes of a pre-bound volume.
        if is_bound && (node.is_some() || has_access_modes(claim, volume)) {
            return reachable.then_some(volume);
        }
        let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let is_candidate = is_free
            && !only_prebound
            && reachable
            && volume_phase(volume) == "Available"
            && class_of_volume(volume) == class_name(claim)
            && has_access_modes(claim, volume)
            && node_selector::label_selector_matches(selector, volume.metadata.labels.as_ref());
        if !is_candidate {
            continue;
        }
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
    let why = if volume.metadata.deletion_timestamp.is_some() {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        return Some(format!("the volume is marked for deletion {name:?}"));
    } else if capacity(volume) < requested_bytes(claim) {
        "requested PV is too small"
    } else if class_of_volume(volume) != class_name(claim) {
        "storageClassName does not match"
    } else if !has_attributes_class(claim, volume) {
        "volumeAttributesClassName does not match"
    } else if !has_mode(claim, volume) {
        "incompatible volumeMode"
    } else if !has_access_modes(claim, volume) {
        "incompatible accessMode"
    } else {
        return None;
    };
    Some(why.to_owned())
}

fn has_attributes_class(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (wanted, offered) = (claim.spec.as_ref(), volume.spec.as_ref());
    let wanted = wanted.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    let offered = offered.and_then(|spec| spec.volume_attributes_class_name.as_deref());
    wanted.unwrap_or_default() == offered.unwrap_or_default()
}

fn has_mode(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (wanted, offered) = (claim.spec.as_ref(), volume.spec.as_ref());
    let wanted = wanted.and_then(|spec| spec.volume_mode.as_deref());
    let offered = offered.and_then(|spec| spec.volume_mode.as_deref());
    wanted.unwrap_or("Filesystem") == offered.unwrap_or("Filesystem")
}

fn has_access_modes(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let (wanted, offered) = (claim.spec.as_ref(), volume.spec.as_ref());
    let offered = offered
        .and_then(|spec| spec.access_modes.as_deref())
        .unwrap_or_default();
    let mut wanted = wanted
        .and_then(|spec| spec.access_modes.as_deref())
        .unwrap_or_default()
        .iter();
    wanted.all(|mode| offered.contains(mode))
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
            ("/spec/capacity/storage", json!("1Ei"), None),
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
    fn volume_with_the_fewest_access_modes_is_bound_even_if_a_smaller_one_fits() {
        let volumes = [
            mk_volume("shared", "1Gi", |v| {
                v["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadWriteMany"])
            }),
            mk_volume("big", "10Gi", |_| {}),
            mk_volume("fits", "2Gi", |_| {}),
        ];
        let name = |volume: Option<&PersistentVolume>| volume.unwrap().metadata.name.clone().unwrap();
        assert_eq!(name(find_by_claim(&mk_claim(), &volumes, false)), "fits");
        let of_scheduler = find_matching_volume(&mk_claim(), &volumes, None, false);
        assert_eq!(name(of_scheduler), "shared", "the scheduler compares sizes only");
    }

    #[test]
    fn claim_of_an_exbibyte_is_not_bound_to_a_smaller_volume() {
        let volumes = [mk_volume("v", "1Gi", |_| {})];
        let mut claim = mk_claim();
        let resources = json!({"requests": {"storage": "1Ei"}});
        claim.spec.as_mut().unwrap().resources = serde_json::from_value(resources).unwrap();
        assert_eq!(requested_bytes(&claim), 1 << 60);
        assert_eq!(find_matching_volume(&claim, &volumes, None, false), None);
    }

    #[test]
    fn volume_that_names_the_claim_is_bound_even_if_its_class_differs() {
        let named = |size: &str, modes: &[&str]| {
            mk_volume("named", size, |v| {
                v["spec"]["claimRef"] = json!({"namespace": "default", "name": "data"});
                v["spec"]["storageClassName"] = json!("fast");
                v["spec"]["accessModes"] = json!(modes);
            })
        };
        let found = |volume| find_matching_volume(&mk_claim(), [&volume], None, false).is_some();
        assert!(found(named("1Gi", &["ReadWriteOnce"])));
        assert!(!found(named("1Mi", &["ReadWriteOnce"])));
        assert!(!found(named("1Gi", &["ReadOnlyMany"])));
    }

    #[test]
    fn claim_with_a_pre_bound_volume_that_the_node_cannot_access_gets_no_other_one() {
        let local = mk_volume("local", "1Gi", |v| {
            v["spec"]["claimRef"] = json!({"namespace": "default", "name": "data"});
            v["spec"]["nodeAffinity"] = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
                [{"key": "zone", "operator": "In", "values": ["z1"]}]}]}});
        });
        let volumes = [local, mk_volume("free", "1Gi", |_| {})];
        let found = |zone: &str| {
            let node = json!({"metadata": {"name": "a", "labels": {"zone": zone}}});
            let node: Node = serde_json::from_value(node).unwrap();
            let volume = find_matching_volume(&mk_claim(), &volumes, Some(&node), false)?;
            volume.metadata.name.clone()
        };
        assert_eq!(found("z1").as_deref(), Some("local"));
        assert_eq!(found("z2"), None);
    }

    #[test]
    fn beta_annotation_takes_precedence_over_the_class_field() {
        let mut claim = mk_claim();
        let beta = (ANN_BETA_STORAGE_CLASS.to_owned(), "fast".to_owned());
        claim.metadata.annotations = Some([beta].into());
        assert_eq!(class_name(&claim), "fast");
        let volume = mk_volume("v", "1Gi", |v| {
            v["metadata"]["annotations"] = json!({ANN_BETA_STORAGE_CLASS: "fast"});
        });
        assert_eq!(mismatch(&claim, &volume), None);
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
