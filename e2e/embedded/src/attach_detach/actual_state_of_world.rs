//! ActualStateOfWorld: the nodes of each attached volume, and the volumes that each node reports as attached.
//!
//! Invariants: an uncertain volume is not reported as attached; a volume is removed from the report before its detach
//! starts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::volume::{UniqueVolumeName, VolumeSpec};

/// Whether a volume is attached to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttachState {
    Attached,
    /// An attach or detach failed, or only the VolumeAttachment is known.
    Uncertain,
    Detached,
}

/// A volume on a node.
#[derive(Clone, Debug)]
pub(crate) struct AttachedVolume {
    pub volume_name: UniqueVolumeName,
    pub node_name: String,
    /// `None` if the volume comes from a node's status and no pod has referenced it since.
    pub spec: Option<Arc<VolumeSpec>>,
    pub mounted_by_node: bool,
    pub attach_state: AttachState,
}

/// As [`AttachedVolume`], borrowed from the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AttachedVolumeRef<'a> {
    name: &'a str,
    node: &'a str,
    volume: &'a Volume,
    attached: &'a NodeAttachedTo,
    in_use: Option<&'a BTreeSet<UniqueVolumeName>>,
}

/// Volume -> nodes.
#[derive(Debug, Default)]
pub(crate) struct ActualStateOfWorld {
    volumes: BTreeMap<UniqueVolumeName, Volume>,
    nodes_to_update_status_for: BTreeMap<String, NodeReport>,
    /// The last observed `volumesInUse` of each node. A volume counts as mounted until the node reports otherwise.
    in_use: BTreeMap<String, BTreeSet<UniqueVolumeName>>,
}

#[derive(Debug)]
struct Volume {
    spec: Option<Arc<VolumeSpec>>,
    device_path: String,
    nodes: BTreeMap<String, NodeAttachedTo>,
}

#[derive(Debug)]
struct NodeAttachedTo {
    attached_confirmed: bool,
    detach_requested: Option<Instant>,
}

#[derive(Debug, Default)]
struct NodeReport {
    status_update_needed: bool,
    volumes: BTreeSet<UniqueVolumeName>,
}

// === impl ActualStateOfWorld: updates from operations ===

impl ActualStateOfWorld {
    /// The volume is attached to the node.
    pub(crate) fn mark_volume_as_attached(
        &mut self,
        name: &str,
        spec: Option<Arc<VolumeSpec>>,
        node: &str,
        device_path: &str,
    ) {
        self.add_volume_node(name, spec, node, device_path, true);
    }

    /// The volume may be attached to the node.
    pub(crate) fn mark_volume_as_uncertain(&mut self, name: &str, spec: Option<Arc<VolumeSpec>>, node: &str) {
        self.add_volume_node(name, spec, node, "", false);
    }

    /// The volume is not attached to the node any more.
    pub(crate) fn mark_volume_as_detached(&mut self, name: &str, node: &str) {
        if let Some(volume) = self.volumes.get_mut(name) {
            volume.nodes.remove(node);
            if volume.nodes.is_empty() {
                self.volumes.remove(name);
            }
        }
        self.remove_volume_from_report_as_attached(name, node);
    }

    /// Removes the volume from the node's `volumesAttached` before the detach.
    pub(crate) fn remove_volume_from_report_as_attached(&mut self, name: &str, node: &str) {
        if let Some(report) = self.nodes_to_update_status_for.get_mut(node)
            && report.volumes.remove(name)
        {
            report.status_update_needed = true;
        }
    }

    /// Adds a volume that is or may be attached to the node's `volumesAttached` again; as upstream, also if the attach is
    /// not confirmed.
    pub(crate) fn add_volume_to_report_as_attached(&mut self, name: &str, node: &str) {
        if self.attach_state(name, node) == AttachState::Detached {
            return;
        }
        let report = self
            .nodes_to_update_status_for
            .entry(node.to_owned())
            .or_default();
        if report.volumes.insert(name.to_owned()) {
            report.status_update_needed = true;
        }
    }

    fn add_volume_node(
        &mut self,
        name: &str,
        spec: Option<Arc<VolumeSpec>>,
        node: &str,
        device_path: &str,
        attached: bool,
    ) {
        let volume = self.volumes.entry(name.to_owned()).or_insert_with(|| Volume {
            spec: None,
            device_path: String::new(),
            nodes: BTreeMap::new(),
        });
        if spec.is_some() {
            volume.spec = spec;
        }
        device_path.clone_into(&mut volume.device_path);
        match volume.nodes.get_mut(node) {
            Some(known) => known.attached_confirmed = attached,
            None => {
                volume.nodes.insert(
                    node.to_owned(),
                    NodeAttachedTo {
                        attached_confirmed: attached,
                        detach_requested: None,
                    },
                );
                // Assume mounted until the node reports otherwise.
                self.in_use
                    .entry(node.to_owned())
                    .or_default()
                    .insert(name.to_owned());
            }
        }
        if attached {
            self.add_volume_to_report_as_attached(name, node);
        }
    }
}

// === impl ActualStateOfWorld: updates from nodes ===

impl ActualStateOfWorld {
    /// Stores a node's `volumesInUse`.
    pub(crate) fn set_volumes_mounted_by_node(&mut self, volumes: &[UniqueVolumeName], node: &str) {
        self.in_use
            .insert(node.to_owned(), volumes.iter().cloned().collect());
    }

    /// Whether a node's `volumesAttached` must be written.
    pub(crate) fn is_node_status_update_needed(&self) -> bool {
        let mut reports = self.nodes_to_update_status_for.values();
        reports.any(|report| report.status_update_needed)
    }

    /// The node's `volumesAttached` must be written again.
    pub(crate) fn set_node_status_update_needed(&mut self, node: &str) {
        if let Some(report) = self.nodes_to_update_status_for.get_mut(node) {
            report.status_update_needed = true;
        }
    }

    /// Sets the detach request time, unless it is set; returns the time since then.
    pub(crate) fn set_detach_request_time(
        &mut self,
        name: &str,
        node: &str,
        now: Instant,
    ) -> Option<Duration> {
        let attached = self.volumes.get_mut(name)?.nodes.get_mut(node)?;
        let requested = *attached.detach_requested.get_or_insert(now);
        Some(now.saturating_duration_since(requested))
    }

    /// Resets the detach request time of a volume that a pod needs again. Returns whether the volume is attached.
    pub(crate) fn reset_detach_request_time(&mut self, name: &str, node: &str) -> bool {
        let volume = self.volumes.get_mut(name);
        match volume.and_then(|volume| volume.nodes.get_mut(node)) {
            Some(attached) if attached.attached_confirmed => {
                attached.detach_requested = None;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The `volumesAttached` (name and device path) of the nodes whose status needs an update; marks them as updated.
    pub(crate) fn get_volumes_to_report_attached(
        &mut self,
    ) -> Vec<(String, Vec<(UniqueVolumeName, String)>)> {
        let nodes: Vec<String> = self
            .nodes_to_update_status_for
            .iter()
            .filter(|(_, report)| report.status_update_needed)
            .map(|(node, _)| node.clone())
            .collect();
        nodes
            .into_iter()
            .filter_map(|node| {
                let volumes = self.get_volumes_to_report_attached_for_node(&node)?;
                Some((node, volumes))
            })
            .collect()
    }

    /// As [`Self::get_volumes_to_report_attached`], for one node.
    pub(crate) fn get_volumes_to_report_attached_for_node(
        &mut self,
        node: &str,
    ) -> Option<Vec<(UniqueVolumeName, String)>> {
        let report = self.nodes_to_update_status_for.get_mut(node)?;
        if !std::mem::take(&mut report.status_update_needed) {
            return None;
        }
        let device_path = |name: &UniqueVolumeName| {
            self.volumes
                .get(name)
                .map(|volume| volume.device_path.clone())
                .unwrap_or_default()
        };
        Some(
            report
                .volumes
                .iter()
                .map(|name| (name.clone(), device_path(name)))
                .collect(),
        )
    }
}

// === impl ActualStateOfWorld: queries ===

impl ActualStateOfWorld {
    pub(crate) fn attach_state(&self, name: &str, node: &str) -> AttachState {
        self.volumes
            .get(name)
            .and_then(|volume| volume.nodes.get(node))
            .map_or(AttachState::Detached, NodeAttachedTo::state)
    }

    /// The volume that is or may be attached to the node.
    pub(crate) fn get_attached_volume<'a>(
        &'a self,
        name: &'a str,
        node: &'a str,
    ) -> Option<AttachedVolumeRef<'a>> {
        let volume = self.volumes.get(name)?;
        let attached = volume.nodes.get(node)?;
        Some(AttachedVolumeRef {
            name,
            node,
            volume,
            attached,
            in_use: self.in_use.get(node),
        })
    }

    /// All volumes that are or may be attached.
    pub(crate) fn get_attached_volumes(&self) -> Vec<AttachedVolume> {
        let volumes = self.volumes.iter();
        let pairs = volumes.flat_map(|(name, volume)| volume.nodes.keys().map(move |node| (name, node)));
        pairs
            .filter_map(|(name, node)| self.get_attached_volume(name, node))
            .map(AttachedVolumeRef::to_attached_volume)
            .collect()
    }

    /// The nodes to which the volume is attached for certain.
    pub(crate) fn get_nodes_for_attached_volume(&self, name: &str) -> Vec<String> {
        self.volumes
            .get(name)
            .into_iter()
            .flat_map(|volume| &volume.nodes)
            .filter(|(_, attached)| attached.attached_confirmed)
            .map(|(node, _)| node.clone())
            .collect()
    }

    /// Number of volume and node pairs by driver. A volume without spec has no driver.
    pub(crate) fn volumes_by_driver(&self) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for volume in self.volumes.values() {
            if let Some(spec) = &volume.spec {
                *counts.entry(spec.driver.clone()).or_default() += volume.nodes.len();
            }
        }
        counts
    }
}

// === impl AttachedVolumeRef ===

impl<'a> AttachedVolumeRef<'a> {
    pub(crate) fn spec(self) -> Option<&'a VolumeSpec> {
        self.volume.spec.as_deref()
    }

    pub(crate) fn mounted_by_node(self) -> bool {
        self.in_use.is_some_and(|in_use| in_use.contains(self.name))
    }

    pub(crate) fn detach_requested(self) -> Option<Instant> {
        self.attached.detach_requested
    }

    pub(crate) fn to_attached_volume(self) -> AttachedVolume {
        AttachedVolume {
            volume_name: self.name.to_owned(),
            node_name: self.node.to_owned(),
            spec: self.volume.spec.clone(),
            mounted_by_node: self.mounted_by_node(),
            attach_state: self.attached.state(),
        }
    }
}

// === impl NodeAttachedTo ===

impl NodeAttachedTo {
    fn state(&self) -> AttachState {
        if self.attached_confirmed {
            AttachState::Attached
        } else {
            AttachState::Uncertain
        }
    }
}

#[cfg(test)]
mod tests;
