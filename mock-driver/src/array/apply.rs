//! Applies rows: the only code that writes the array's maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::snapshot::Snapshot;
use super::{Array, NodeId, Row, SnapshotId, Volume, VolumeId};

// === impl Array ===

impl Array {
    /// Replaces a row, also of an earlier state.
    pub fn apply(&mut self, row: Row) {
        self.promises.keep(&row);
        match row {
            Row::Counters(counters) => self.counters = counters,
            Row::Volume(id, volume) => self.apply_volume(id, volume),
            Row::Snapshot(id, snapshot) => self.apply_snapshot(id, snapshot),
            Row::Group(id, group) => {
                if let Some(old) = self.groups.remove(&id) {
                    self.group_names.remove(&old.name);
                }
                if let Some(group) = group {
                    self.group_names.insert(group.name.clone(), id.clone());
                    self.groups.insert(id, group);
                }
            }
            Row::StorageHealth(node, issues) if issues.is_empty() => {
                self.storage.remove(&node);
            }
            Row::StorageHealth(node, issues) => {
                self.storage.insert(node, issues);
            }
            Row::Node(node, settings) => self.apply_node(node, settings),
            Row::Pool(pool, capacity) => self.apply_pool(pool, capacity),
        }
    }

    fn apply_volume(&mut self, id: VolumeId, new: Option<Volume>) {
        let old = self.volumes.remove(&id);
        match (&old, &new) {
            (None, Some(new)) => {
                if !new.spec.name.is_empty() {
                    self.names.insert(new.spec.name.clone(), id.clone());
                }
                if let Some(source) = &new.spec.source {
                    let made = self.made_from.entry(source.clone()).or_default();
                    made.insert(id.clone());
                }
            }
            (Some(old), None) => {
                self.names.remove(&old.spec.name);
                if let Some(source) = &old.spec.source {
                    forget_child(&mut self.made_from, source, &id);
                }
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        for gone in old.iter().flat_map(|old| old.attachments.keys()) {
            if new.as_ref().is_none_or(|new| !new.attachments.contains_key(gone)) {
                self.release(gone, &id);
            }
        }
        for node in new.iter().flat_map(|new| new.attachments.keys()) {
            if old.as_ref().is_none_or(|old| !old.attachments.contains_key(node)) {
                self.node_entry(node.clone()).attached.insert(id.clone());
            }
        }
        if let Some(old) = &old {
            self.give_space(&old.spec.pool, old.spec.capacity_bytes);
        }
        if let Some(new) = new {
            self.take_space(&new.spec.pool, new.spec.capacity_bytes);
            self.volumes.insert(id, new);
        }
    }

    fn apply_snapshot(&mut self, id: SnapshotId, new: Option<Arc<Snapshot>>) {
        if let Some(old) = self.snapshots.remove(&id) {
            self.snapshot_names.remove(&old.name);
            forget_child(&mut self.taken_of, &old.source, &id);
            self.give_space(&old.pool, old.size_bytes);
        }
        let Some(new) = new else { return };
        if !new.name.is_empty() {
            self.snapshot_names.insert(new.name.clone(), id.clone());
        }
        let taken = self.taken_of.entry(new.source.clone()).or_default();
        taken.insert(id.clone());
        self.take_space(&new.pool, new.size_bytes);
        self.snapshots.insert(id, new);
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

/// Removes an object from those of its source.
fn forget_child<K: Ord, C: Ord>(children: &mut BTreeMap<K, BTreeSet<C>>, source: &K, child: &C) {
    if let Some(left) = children.get_mut(source) {
        left.remove(child);
        if left.is_empty() {
            children.remove(source);
        }
    }
}
