//! Ids and attachment numbers in responses to calls whose operation happens later.
//!
//! They are kept in memory: an operation that has not happened before the end of the process never happens.

use std::collections::BTreeMap;

use super::{Array, CreateGroupParams, Row};

/// What an id or number depends on, by kind and subject: the number of earlier objects, or the attachment number.
#[derive(Clone, Debug, Default)]
pub(super) struct Promises(BTreeMap<(&'static str, String), u64>);

/// The kind of attachments; those of objects are those of their ids.
const ATTACHMENT: &str = "attachment";

// === impl Promises ===

impl Promises {
    pub(super) fn get(&self, kind: &'static str, name: &str) -> Option<u64> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&(kind, name.to_owned())).copied()
    }

    pub(super) fn attachment(&self, volume: &str, node: &str) -> Option<u64> {
        self.get(ATTACHMENT, &pair(volume, node))
    }

    /// Removes the promises that a new row keeps.
    pub(super) fn keep(&mut self, row: &Row) {
        if self.0.is_empty() {
            return;
        }
        match row {
            Row::Volume(id, Some(volume)) => {
                self.0.remove(&(VOLUME, volume.spec.name.clone()));
                for node in volume.attachments.keys() {
                    self.0.remove(&(ATTACHMENT, pair(id.as_str(), node.as_str())));
                }
            }
            Row::Snapshot(_, Some(snapshot)) => {
                self.0.remove(&(SNAPSHOT, snapshot.name.clone()));
            }
            Row::Group(id, Some(group)) => {
                let members = format!("{id}/");
                let is_member = |kind: &str, name: &str| kind == SNAPSHOT && name.starts_with(&members);
                self.0.retain(|(kind, name), _| !is_member(kind, name));
                self.0.remove(&(GROUP, group.name.clone()));
            }
            Row::Counters(_)
            | Row::Volume(_, None)
            | Row::Snapshot(_, None)
            | Row::Group(_, None)
            | Row::StorageHealth(..)
            | Row::Node(..)
            | Row::Pool(..) => {}
        }
    }
}

/// The kinds of objects with ids.
pub(super) const VOLUME: &str = "volume";
pub(super) const SNAPSHOT: &str = "snapshot";
pub(super) const GROUP: &str = "group";

// === impl Array ===

impl Array {
    /// Keeps the number of the next attachment of a volume to a node for it.
    pub(crate) fn promise_attachment(&mut self, volume: &str, node: &str) {
        let is_attached = |held: &super::Volume| held.attachments.contains_key(node);
        let is_promised = self.promises.attachment(volume, node).is_some();
        if !is_promised && self.volumes.get(volume).is_some_and(|held| !is_attached(held)) {
            self.counters.attached += 1;
            let promised = (ATTACHMENT, pair(volume, node));
            self.promises.0.insert(promised, self.counters.attached);
        }
    }

    /// Keeps the id of a volume that will be created under this name.
    pub(crate) fn promise_volume(&mut self, name: &str) {
        if !self.names.contains_key(name) {
            self.promise(VOLUME, name.to_owned(), self.counters.created);
        }
    }

    /// Keeps the id of a snapshot that will be created under this name.
    pub(crate) fn promise_snapshot(&mut self, name: &str) {
        if !self.snapshot_names.contains_key(name) {
            self.promise(SNAPSHOT, name.to_owned(), self.counters.made);
        }
    }

    /// Keeps the ids of a group that will be created, and of its members.
    pub(crate) fn promise_group(&mut self, wanted: &CreateGroupParams) {
        if self.group_names.contains_key(&wanted.name) {
            return;
        }
        self.promise(GROUP, wanted.name.clone(), self.counters.made);
        let group = self.group_ids(wanted).group;
        for source in &wanted.sources {
            self.promise(SNAPSHOT, format!("{group}/{source}"), self.counters.made);
        }
    }

    fn promise(&mut self, kind: &'static str, name: String, before: u64) {
        self.promises.0.entry((kind, name)).or_insert(before);
    }
}

/// Ids may have any characters.
fn pair(volume: &str, node: &str) -> String {
    format!("{volume:?} {node:?}")
}
