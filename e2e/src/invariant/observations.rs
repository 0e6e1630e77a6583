//! The observations on which the invariants are checked.

use std::collections::{BTreeMap, BTreeSet};

use attacher_contract::observation::Write;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;

use super::lease;
use crate::attacher::Processes;
use crate::driver::array::NodesByVolume;
use crate::driver::journal::{Call, MountEvent};
use crate::fixture::Access;

/// All observations of a scenario.
#[derive(Clone, Debug, Default)]
pub struct Observations {
    /// Name of the driver.
    pub driver: String,
    /// The finalizer of the driver's attacher.
    pub finalizer: String,
    /// Whether all attachers of the scenario make csi-attacher's promises.
    pub makes_promises: bool,
    /// The scenario's volumes by the name of their PersistentVolume.
    pub volumes: BTreeMap<String, VolumeSpec>,
    /// The driver's ids of the nodes, by node name.
    pub node_ids: BTreeMap<String, String>,
    /// Calls of the driver in the order they arrived.
    pub calls: Vec<Call>,
    /// Mounts and unmounts by the nodes' drivers, by time.
    pub mounts: Vec<MountEvent>,
    /// Watch events of the driver's attachments, in order.
    pub watch_events: Vec<WatchEvent>,
    /// Watch events of the driver's PersistentVolumes, in order.
    pub volume_events: Vec<WatchEvent<PersistentVolume>>,
    /// Watch events of the attachers' Lease, in order.
    pub lease_events: Vec<WatchEvent<Lease>>,
    /// The attachers with leader election.
    pub replicas: Processes,
    /// Their writes of VolumeAttachments and PersistentVolumes, by the time at which they were sent.
    pub writes: Vec<(Timestamp, Write)>,
    /// What the driver's own list contained both before and after the attachments were read.
    pub published: NodesByVolume,
    /// Volumes and the driver's ids of nodes that only one of the two lists contained.
    pub changing: BTreeSet<(String, String)>,
    /// The driver's attachments at the end.
    pub attachments: Vec<VolumeAttachment>,
    /// The PersistentVolumes at the end.
    pub persistent_volumes: Vec<PersistentVolume>,
    /// Volumes (by handle) and nodes (by name) that the controller may force-detach, or that the scenario unpublished itself,
    /// with the time from which on.
    pub force_detached: BTreeMap<(String, String), Timestamp>,
    /// When watch events may have been lost, and which.
    pub gaps: Vec<(Timestamp, String)>,
    /// Volumes (by handle) and nodes (by the driver's id) that are exempt from three clauses: the scenario detached
    /// them out of band, or the driver lost calls.
    pub exempt: BTreeSet<(String, String)>,
    /// Values that must not be written anywhere.
    pub secrets: Vec<String>,
    /// All output by source.
    pub texts: Vec<(String, String)>,
}

/// A volume of the scenario.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// The driver's id.
    pub handle: String,
    /// Whether one node or several nodes may have it.
    pub access: Access,
}

/// A state of an object, with the time of its watch event.
#[derive(Clone, Debug)]
pub struct WatchEvent<K = VolumeAttachment> {
    /// Time of the watch event, which is later than the write.
    pub at: Timestamp,
    /// Whether the object was deleted.
    pub gone: bool,
    /// The object.
    pub object: K,
}

// === impl Observations ===

impl Observations {
    /// Volume handle and the driver's node id of an attachment.
    pub fn publish_target(&self, attachment: &VolumeAttachment) -> Option<(&str, &str)> {
        let pv = attachment.spec.source.persistent_volume_name.as_deref()?;
        let volume = self.volumes.get(pv)?;
        let node = self.node_ids.get(&attachment.spec.node_name)?;
        Some((&volume.handle, node))
    }

    /// Whether a recorded PersistentVolume with this handle names a publish Secret.
    pub(super) fn has_secret(&self, handle: &str) -> Option<bool> {
        let mut sources = self
            .volume_events
            .iter()
            .filter_map(|event| event.object.spec.as_ref()?.csi.as_ref());
        let source = sources.find(|source| source.volume_handle == handle)?;
        Some(source.controller_publish_secret_ref.is_some())
    }

    /// Whether this is the name of an attachment of an exempt volume and node.
    pub(super) fn is_exempt(&self, name: &str) -> bool {
        let seen = self.watch_events.iter().map(|event| &event.object);
        let mut attachments = seen.chain(&self.attachments);
        let attachment = attachments.find(|attachment| attachment.metadata.name.as_deref() == Some(name));
        let target = attachment.and_then(|attachment| self.publish_target(attachment));
        target.is_some_and(|(volume, node)| self.exempt.contains(&(volume.to_owned(), node.to_owned())))
    }

    /// A time before all observations.
    pub(super) fn start(&self) -> Timestamp {
        let calls = self.calls.iter().map(|call| call.start);
        let mounts = self.mounts.iter().map(|event| event.at);
        let watched = self.watch_events.iter().map(|event| event.at);
        let watched = watched.chain(self.volume_events.iter().map(|event| event.at));
        let forced = self.force_detached.values().copied();
        let writes = self.writes.iter().map(|(at, _)| *at);
        let holders = lease::holders(&self.lease_events).into_iter().map(|(at, _)| at);
        let first = calls
            .chain(mounts)
            .chain(watched)
            .chain(forced)
            .chain(writes)
            .chain(holders)
            .min();
        first.unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// Splits two lists into what both contain and what only one contains.
pub(crate) fn compare_lists(
    before: &NodesByVolume,
    after: &NodesByVolume,
) -> (NodesByVolume, BTreeSet<(String, String)>) {
    let targets = |list: &NodesByVolume| -> BTreeSet<(String, String)> {
        let targets = list
            .iter()
            .flat_map(|(volume, nodes)| nodes.iter().map(move |node| (volume.clone(), node.clone())));
        targets.collect()
    };
    let (before, after) = (targets(before), targets(after));
    let mut both = NodesByVolume::new();
    for (volume, node) in before.intersection(&after).cloned() {
        both.entry(volume).or_default().insert(node);
    }
    (both, before.symmetric_difference(&after).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_into_stable_and_changing_targets() {
        let list = |targets: &[(&str, &str)]| {
            let mut list = NodesByVolume::new();
            for (volume, node) in targets {
                let nodes = list.entry((*volume).to_owned()).or_default();
                nodes.insert((*node).to_owned());
            }
            list
        };
        let before = list(&[("stays", "a"), ("shared", "a"), ("shared", "b")]);
        let after = list(&[("stays", "a"), ("shared", "b"), ("new", "b")]);
        let (published, changing) = compare_lists(&before, &after);
        assert_eq!(published, list(&[("stays", "a"), ("shared", "b")]));
        let own = |(volume, node): (&str, &str)| (volume.to_owned(), node.to_owned());
        assert_eq!(changing, BTreeSet::from([("new", "b"), ("shared", "a")].map(own)));
    }
}
