//! The nodes that a pod fits on, as pure functions of a snapshot of the stores. The messages are
//! kube-scheduler's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Taint};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use crate::node;
use crate::node_selector;
use crate::persistent_volume::{
    ANN_BIND_COMPLETED, NOT_SUPPORTED_PROVISIONER, claim_phase, class_name, find_matching_volume,
    is_delay_binding_mode, is_reachable, is_volume_bound_to_claim, requested_bytes,
};
use crate::pod;
use crate::quantity;
use crate::volume::{UniqueVolumeName, VolumeSpec, claim_name, unique_volume_name};

/// The scheduler's snapshot of the cluster.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub nodes: Vec<Arc<Node>>,
    pub pods: Vec<Arc<Pod>>,
    pub claims: BTreeMap<(String, String), Arc<PersistentVolumeClaim>>,
    pub volumes: Vec<Arc<PersistentVolume>>,
    pub classes: BTreeMap<String, Arc<StorageClass>>,
    pub csi_nodes: BTreeMap<String, Arc<CSINode>>,
    pub csi_drivers: BTreeMap<String, Arc<CSIDriver>>,
    pub attachments: Vec<Arc<VolumeAttachment>>,
    pub capacities: Vec<Arc<CSIStorageCapacity>>,
    /// Nodes of assumed pods by UID, until the informer shows the pods there.
    pub assumed: BTreeMap<String, String>,
}

/// The claims of a pod by binding mode.
#[derive(Debug, Default)]
pub(crate) struct PodVolumeClaims {
    pub bound_claims: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    /// Unbound claims with WaitForFirstConsumer.
    pub unbound_claims_delay_binding: Vec<Arc<PersistentVolumeClaim>>,
}

// === impl PodVolumeClaims ===

impl PodVolumeClaims {
    /// Resolves the pod's claims.
    ///
    /// # Errors
    /// A claim is missing, or unbound with immediate binding, so no node fits: the message names it.
    pub(crate) fn of(pod: &Pod, snapshot: &Snapshot) -> Result<Self, String> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let mut claims = Self::default();
        for volume in pod::volumes(pod) {
            let Some(name) = claim_name(pod, volume) else {
                continue;
            };
            let Some(claim) = snapshot.claims.get(&(namespace.clone(), name.clone())) else {
                if volume.ephemeral.is_some() {
                    return Err(format!(
                        "waiting for ephemeral volume controller to create the \
                         persistentvolumeclaim {name:?}"
                    ));
                }
                return Err(format!("persistentvolumeclaim {name:?} not found"));
            };
            if claim_phase(claim) == "Lost" {
                let spec = claim.spec.as_ref();
                let bound = spec
                    .and_then(|spec| spec.volume_name.as_deref())
                    .unwrap_or_default();
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {bound:?}"
                ));
            }
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if volume.ephemeral.is_some() {
                pod::check_owner(pod, &claim.metadata)?;
            }
            claims.add(claim, snapshot)?;
        }
        Ok(claims)
    }

    fn add(&mut self, claim: &Arc<PersistentVolumeClaim>, snapshot: &Snapshot) -> Result<(), String> {
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
        let name = name.filter(|name| !name.is_empty());
        let volume = name.and_then(|name| snapshot.volume(name));
        let bound = claim.annotations().contains_key(ANN_BIND_COMPLETED);
        if let Some(volume) = volume.filter(|_| bound) {
            self.bound_claims.push((claim.clone(), volume));
            return Ok(());
        }
        let class = snapshot.classes.get(class_name(claim));
        // A claim that names its volume is left to the PV controller.
        if name.is_none() && class.is_some_and(|class| is_delay_binding_mode(class)) {
            self.unbound_claims_delay_binding.push(claim.clone());
            Ok(())
        } else {
            Err("pod has unbound immediate PersistentVolumeClaims".to_owned())
        }
    }
}

// === impl Snapshot ===

impl Snapshot {
    pub(crate) fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes
            .iter()
            .find(|volume| volume.metadata.name.as_deref() == Some(name))
            .cloned()
    }

    /// The node's CSI volumes by driver, those of assumed pods included.
    fn volumes_on(&self, node: &str) -> BTreeMap<String, BTreeSet<UniqueVolumeName>> {
        let mut volumes: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
        for pod in &self.pods {
            let assumed = self.assumed.get(pod::uid(pod)).map(String::as_str);
            if pod::node_name(pod).or(assumed) != Some(node) || pod::is_finished(pod) {
                continue;
            }
            for (driver, volume) in self.volumes_of(pod) {
                volumes.entry(driver).or_default().insert(volume);
            }
        }
        volumes
    }

    /// The driver's volumes with a VolumeAttachment for the node.
    fn attached_to(&self, node: &str, driver: &str) -> BTreeSet<UniqueVolumeName> {
        let specs = self.attachments.iter().map(|attachment| &attachment.spec);
        let specs = specs.filter(|spec| spec.node_name == node && spec.attacher == driver);
        let volumes = specs.filter_map(|spec| self.volume(spec.source.persistent_volume_name.as_deref()?));
        let handles =
            volumes.filter_map(|volume| Some(volume.spec.as_ref()?.csi.as_ref()?.volume_handle.clone()));
        handles
            .map(|handle| unique_volume_name(driver, &handle))
            .collect()
    }

    /// A claim without a volume counts as one volume of its class's provisioner.
    fn volumes_of(&self, pod: &Pod) -> Vec<(String, UniqueVolumeName)> {
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let claim = |name: String| self.claims.get(&(namespace.clone(), name));
        pod::volumes(pod)
            .iter()
            .filter_map(|volume| claim(claim_name(pod, volume)?))
            .filter_map(|claim| {
                let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
                if let Some(volume) = bound.and_then(|name| self.volume(name)) {
                    let spec = VolumeSpec::from_persistent_volume(&volume)?;
                    return Some((spec.driver.clone(), spec.unique_name()));
                }
                let class = self.classes.get(class_name(claim))?;
                let uid = claim.metadata.uid.clone().unwrap_or_default();
                Some((class.provisioner.clone(), format!("claim/{uid}")))
            })
            .collect()
    }
}

// === filters ===

/// The reason that the pod does not fit on the node; `None` if it does.
pub(crate) fn reject(
    pod: &Pod,
    claims: &PodVolumeClaims,
    node: &Node,
    snapshot: &Snapshot,
) -> Option<String> {
    rejected_by_node(pod, node)
        .or_else(|| rejected_by_volumes(pod, claims, node, snapshot))
        .or_else(|| rejected_by_limits(pod, node, snapshot))
        .or_else(|| {
            let missing = claims
                .unbound_claims_delay_binding
                .iter()
                .find(|claim| !can_get_volume(claim, node, snapshot))?;
            let class = snapshot.classes.get(class_name(missing))?;
            Some(if provisions(class) && topology_allows(class, node) {
                "node(s) did not have enough free storage".to_owned()
            } else {
                "node(s) didn't find available persistent volumes to bind".to_owned()
            })
        })
}

fn rejected_by_node(pod: &Pod, node: &Node) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let node_spec = node.spec.clone().unwrap_or_default();
    if node_spec.unschedulable == Some(true) {
        return Some("node(s) were unschedulable".to_owned());
    }
    let tolerated = |taint: &Taint| {
        let mut tolerations = spec.tolerations.iter().flatten();
        tolerations.any(|toleration| node::tolerates(toleration, taint))
    };
    let taints = node_spec.taints.unwrap_or_default();
    let repelled = taints
        .iter()
        .find(|taint| taint.effect != "PreferNoSchedule" && !tolerated(taint));
    if repelled.is_some() {
        return Some("node(s) had untolerated taint(s)".to_owned());
    }
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let selected = spec
        .node_selector
        .iter()
        .flatten()
        .all(|(key, value)| labels.get(key) == Some(value));
    let required = spec
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref())
        .and_then(|affinity| {
            affinity
                .required_during_scheduling_ignored_during_execution
                .as_ref()
        });
    let affine = required.is_none_or(|required| node_selector::matches(required, node));
    (!selected || !affine).then(|| "node(s) didn't match Pod's node affinity/selector".to_owned())
}

fn rejected_by_volumes(
    pod: &Pod,
    claims: &PodVolumeClaims,
    node: &Node,
    snapshot: &Snapshot,
) -> Option<String> {
    if claims
        .bound_claims
        .iter()
        .any(|(_, volume)| !is_reachable(volume, node))
    {
        return Some("node(s) didn't match PersistentVolume's node affinity".to_owned());
    }
    let bound = claims.bound_claims.iter().map(|(claim, _)| claim);
    let mut claims = bound.chain(&claims.unbound_claims_delay_binding);
    let is_in_use = claims.any(|claim| is_exclusive(claim) && has_other_user(pod, claim, snapshot));
    is_in_use.then(|| {
        "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
            .to_owned()
    })
}

fn is_exclusive(claim: &PersistentVolumeClaim) -> bool {
    let modes = claim.spec.as_ref().and_then(|spec| spec.access_modes.as_ref());
    modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
}

fn has_other_user(pod: &Pod, claim: &PersistentVolumeClaim, snapshot: &Snapshot) -> bool {
    snapshot.pods.iter().any(|other| {
        pod::uid(other) != pod::uid(pod)
            && other.metadata.namespace == claim.metadata.namespace
            && (pod::node_name(other).is_some() || snapshot.assumed.contains_key(pod::uid(other)))
            && !pod::is_finished(other)
            && pod::volumes(other)
                .iter()
                .any(|volume| claim_name(other, volume) == claim.metadata.name)
    })
}

/// Rejects a node that lacks a driver with `preventPodSchedulingIfMissing`, or that exceeds a driver's attach
/// limit in CSINode.
fn rejected_by_limits(pod: &Pod, node: &Node, snapshot: &Snapshot) -> Option<String> {
    let wanted = snapshot.volumes_of(pod);
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let csi_node = snapshot.csi_nodes.get(name);
    let drivers = csi_node.map_or(&[][..], |csi_node| csi_node.spec.drivers.as_slice());
    let missing = wanted.iter().map(|(driver, _)| driver).find(|driver| {
        let object = snapshot.csi_drivers.get(*driver);
        object.is_some_and(|object| object.spec.prevent_pod_scheduling_if_missing == Some(true))
            && drivers.iter().all(|entry| entry.name != **driver)
    });
    if let Some(driver) = missing {
        return Some(format!("{driver} CSI driver is not installed on the node"));
    }
    let exceeded = drivers.iter().any(|entry| {
        let limit = entry
            .allocatable
            .as_ref()
            .and_then(|allocatable| allocatable.count);
        let of_driver = wanted.iter().filter(|(driver, _)| *driver == entry.name);
        let mut new: BTreeSet<&UniqueVolumeName> = of_driver.map(|(_, volume)| volume).collect();
        let Some(limit) = limit.filter(|_| !new.is_empty()) else {
            return false;
        };
        let used = snapshot.volumes_on(name).remove(&entry.name).unwrap_or_default();
        new.retain(|volume| !used.contains(*volume));
        // As upstream, a new volume that already has a VolumeAttachment counts twice.
        let present = used.union(&snapshot.attached_to(name, &entry.name)).count();
        !new.is_empty() && present + new.len() > usize::try_from(limit).unwrap_or_default()
    });
    exceeded.then(|| "node(s) exceed max volume count".to_owned())
}

/// Whether a claim with WaitForFirstConsumer has a matching volume for the node, or a volume can be
/// provisioned for it.
pub(crate) fn can_get_volume(claim: &PersistentVolumeClaim, node: &Node, snapshot: &Snapshot) -> bool {
    let volumes = snapshot.volumes.iter().map(|volume| &**volume);
    if find_matching_volume(claim, volumes, Some(node), false).is_some() {
        return true;
    }
    let Some(class) = snapshot.classes.get(class_name(claim)) else {
        return false;
    };
    provisions(class) && topology_allows(class, node) && has_capacity(claim, class, node, snapshot)
}

fn provisions(class: &StorageClass) -> bool {
    class.provisioner != NOT_SUPPORTED_PROVISIONER
}

fn topology_allows(class: &StorageClass, node: &Node) -> bool {
    let Some(terms) = class
        .allowed_topologies
        .as_ref()
        .filter(|terms| !terms.is_empty())
    else {
        return true;
    };
    let labels = node.metadata.labels.clone().unwrap_or_default();
    terms.iter().any(|term| {
        term.match_label_expressions.iter().flatten().all(|requirement| {
            labels
                .get(&requirement.key)
                .is_some_and(|value| requirement.values.contains(value))
        })
    })
}

/// Only drivers that publish CSIStorageCapacity are checked.
fn has_capacity(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Node,
    snapshot: &Snapshot,
) -> bool {
    let published = snapshot
        .csi_drivers
        .get(&class.provisioner)
        .is_some_and(|driver| driver.spec.storage_capacity == Some(true));
    if !published {
        return true;
    }
    let size = requested_bytes(claim);
    snapshot.capacities.iter().any(|capacity| {
        let limit = capacity
            .maximum_volume_size
            .as_ref()
            .or(capacity.capacity.as_ref());
        Some(&capacity.storage_class_name) == class.metadata.name.as_ref()
            && limit.and_then(quantity::bytes).is_some_and(|limit| limit >= size)
            && reaches(capacity.node_topology.as_ref(), node)
    })
}

/// A capacity without topology applies to no node.
fn reaches(topology: Option<&LabelSelector>, node: &Node) -> bool {
    topology.is_some_and(|topology| {
        node_selector::label_selector_matches(Some(topology), node.metadata.labels.as_ref())
    })
}

/// The existing volume that a claim with WaitForFirstConsumer would bind on the node.
pub(crate) fn volume_for_node(
    claim: &PersistentVolumeClaim,
    node: &Node,
    snapshot: &Snapshot,
) -> Option<Arc<PersistentVolume>> {
    let volumes = snapshot.volumes.iter().map(|volume| &**volume);
    let found = find_matching_volume(claim, volumes, Some(node), false)?;
    if is_volume_bound_to_claim(found, claim) {
        return None;
    }
    snapshot.volume(found.metadata.name.as_deref()?)
}

#[cfg(test)]
mod tests;
