//! Applies changes: the only code that writes the array's maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::group::Group;
use super::snapshot::Snapshot;
use super::volume::{Source, Volume};
use super::{Array, Change, GroupId, NodeId, SnapshotId, Spec, VolumeId};

// === impl Array ===

impl Array {
    /// Applies a new or a replayed change.
    pub fn apply(&mut self, change: Change) {
        self.promises.keep(&change);
        match change {
            Change::Created { spec } => {
                self.created += 1;
                self.insert(Volume::from(spec));
            }
            Change::Deleted { volume } => self.forget(&volume),
            Change::Attached {
                volume,
                node,
                attachment,
            } => {
                self.attached = self.attached.max(attachment.number);
                if let Some(held) = self.volumes.get_mut(&volume) {
                    held.attachments.insert(node.clone(), attachment);
                    self.node_entry(node).attached.insert(volume);
                }
            }
            Change::Detached { volume, nodes } => {
                for node in &nodes {
                    if let Some(held) = self.volumes.get_mut(&volume) {
                        held.attachments.remove(node);
                    }
                    self.release(node, &volume);
                }
            }
            Change::Expanded {
                volume,
                capacity_bytes,
            } => self.resize(&volume, capacity_bytes),
            Change::Modified { volume, qos } => {
                if let Some(volume) = self.volumes.get_mut(&volume) {
                    volume.qos = qos;
                }
            }
            Change::VolumeHealth(unhealthy) if unhealthy.issues.is_empty() => {
                self.unhealthy.remove(&unhealthy.volume);
            }
            Change::VolumeHealth(unhealthy) => {
                self.unhealthy.insert(unhealthy.volume.clone(), unhealthy);
            }
            Change::StorageHealth { node, issues } if issues.is_empty() => {
                self.storage.remove(&node);
            }
            Change::StorageHealth { node, issues } => {
                self.storage.insert(node, issues);
            }
            Change::Snapshotted { snapshot } => {
                self.made += 1;
                self.insert_snapshot(snapshot);
            }
            Change::SnapshotsReady { snapshots } => {
                for id in &snapshots {
                    if let Some(snapshot) = self.snapshots.get_mut(id) {
                        Arc::make_mut(snapshot).ready_after = None;
                    }
                }
            }
            Change::SnapshotDeleted { snapshot } => self.forget_snapshot(&snapshot),
            Change::Grouped { group, snapshots } => {
                self.made += 1;
                for snapshot in snapshots {
                    self.insert_snapshot(snapshot);
                }
                self.insert_group(group);
            }
            Change::GroupDeleted { group, .. } => self.forget_group(&group),
            Change::PoolResized { pool, capacity } => self.apply_pool(pool, capacity),
            Change::NodeSet { node, settings } => self.apply_node(node, settings),
            Change::NodeRenamed { from, to, settings } => {
                let mut old = self.changed.get(&from).cloned().unwrap_or_default();
                old.registered = Some(false);
                old.renamed_to = Some(to.clone());
                // The machine and its connection to the storage do not change.
                if let Some(issues) = self.storage.remove(&Some(from.clone())) {
                    self.storage.insert(Some(to.clone()), issues);
                }
                self.apply_node(from, old);
                self.apply_node(to, settings);
            }
        }
    }

    pub(super) fn insert(&mut self, volume: Volume) {
        let spec = &volume.spec;
        let id = spec.id.clone();
        if !spec.name.is_empty() {
            self.names.insert(spec.name.clone(), id.clone());
        }
        if let Some(source) = &spec.source {
            let made = self.made_from.entry(source.clone()).or_default();
            made.insert(id.clone());
        }
        for node in volume.attachments.keys() {
            self.node_entry(node.clone()).attached.insert(id.clone());
        }
        let (pool, bytes) = (spec.pool.clone(), spec.capacity_bytes);
        self.take_space(&pool, bytes);
        self.volumes.insert(id, volume);
    }

    pub(super) fn insert_snapshot(&mut self, snapshot: Arc<Snapshot>) {
        let id = snapshot.id.clone();
        if !snapshot.name.is_empty() {
            self.snapshot_names.insert(snapshot.name.clone(), id.clone());
        }
        let taken = self.taken_of.entry(snapshot.source.clone()).or_default();
        taken.insert(id.clone());
        self.take_space(&snapshot.pool, snapshot.size_bytes);
        self.snapshots.insert(id, snapshot);
    }

    pub(super) fn insert_group(&mut self, group: Arc<Group>) {
        self.group_names.insert(group.name.clone(), group.id.clone());
        self.groups.insert(group.id.clone(), group);
    }

    fn resize(&mut self, volume: &VolumeId, capacity_bytes: u64) {
        let Some(volume) = self.volumes.get_mut(volume) else {
            return;
        };
        let spec = Arc::make_mut(&mut volume.spec);
        let (pool, old) = (spec.pool.clone(), spec.capacity_bytes);
        spec.capacity_bytes = capacity_bytes;
        self.give_space(&pool, old);
        self.take_space(&pool, capacity_bytes);
    }

    fn forget(&mut self, id: &VolumeId) {
        let Some(gone) = self.volumes.remove(id) else {
            return;
        };
        self.names.remove(&gone.spec.name);
        self.unhealthy.remove(id);
        if let Some(source) = &gone.spec.source {
            forget_child(&mut self.made_from, source, id);
        }
        for node in gone.attachments.keys() {
            self.release(node, id);
        }
        self.give_space(&gone.spec.pool, gone.spec.capacity_bytes);
    }

    fn forget_snapshot(&mut self, id: &SnapshotId) {
        let Some(gone) = self.snapshots.remove(id) else {
            return;
        };
        self.snapshot_names.remove(&gone.name);
        if let Some(taken) = self.taken_of.get_mut(&gone.source) {
            taken.remove(id);
            if taken.is_empty() {
                self.taken_of.remove(&gone.source);
            }
        }
        self.give_space(&gone.pool, gone.size_bytes);
    }

    fn forget_group(&mut self, id: &GroupId) {
        let Some(gone) = self.groups.remove(id) else {
            return;
        };
        self.group_names.remove(&gone.name);
        for snapshot in gone.members.values() {
            self.forget_snapshot(snapshot);
        }
    }

    fn release(&mut self, node: &NodeId, volume: &VolumeId) {
        if let Some(holder) = self.nodes.get_mut(node) {
            holder.attached.remove(volume);
            if !holder.registered && holder.attached.is_empty() {
                self.nodes.remove(node);
            }
        }
    }
}

// === impl Volume ===

impl From<Arc<Spec>> for Volume {
    fn from(spec: Arc<Spec>) -> Self {
        Self {
            qos: spec.mutable_parameters.clone(),
            spec,
            attachments: BTreeMap::new(),
        }
    }
}

fn forget_child(made_from: &mut super::MadeFrom, source: &Source, child: &VolumeId) {
    if let Some(children) = made_from.get_mut(source) {
        children.remove(child);
        if children.is_empty() {
            made_from.remove(source);
        }
    }
}
