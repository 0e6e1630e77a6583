//! The state as rows. An operation yields the rows that it replaces; they are applied, stored, and applied again to a stale list.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::health::StorageHealthIssue;
use super::node::NodeSettings;
use super::snapshot::Snapshot;
use super::{Array, GroupId, NodeId, PoolName, SnapshotId, Volume, VolumeId};

/// A row with its new content; `None` removes it. Applying it cannot fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Row {
    Counters(Counters),
    Volume(VolumeId, Option<Volume>),
    Snapshot(SnapshotId, Option<Arc<Snapshot>>),
    Group(GroupId, Option<Arc<Group>>),
    /// The storage behind a node, or behind all nodes. Empty for healthy storage.
    StorageHealth(Option<NodeId>, Vec<StorageHealthIssue>),
    Node(NodeId, NodeSettings),
    /// The capacity of a pool, changed at run time.
    Pool(PoolName, u64),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Unique number of the array; key of its ids and page tokens.
    pub id_seed: u128,
    /// Number of volumes created by requests, deleted ones included.
    pub created: u64,
    /// Number of attachments so far.
    pub attached: u64,
    /// Number of initial volumes, deleted ones included.
    pub initial_volumes: u64,
    /// Number of created snapshots and groups, deleted ones included.
    pub made: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    pub reply: T,
    /// The rows that it replaced; none for a repeated request.
    pub rows: Vec<Row>,
}

// === impl Done ===

impl<T> Done<T> {
    /// The reply to a repeated request.
    pub(super) fn unchanged(reply: T) -> Self {
        let rows = Vec::new();
        Self { reply, rows }
    }
}

// === impl Row ===

impl Row {
    pub(crate) const TABLES: [&'static str; 7] = [
        "counters",
        "volumes",
        "snapshots",
        "groups",
        "storage_health",
        "nodes",
        "pools",
    ];

    /// Table, key and content as JSON.
    pub(crate) fn stored(&self) -> ((&'static str, String), Option<Vec<u8>>) {
        let (table, key, content) = match self {
            Self::Counters(counters) => (0, "", Some(json(counters))),
            Self::Volume(id, volume) => (1, id.as_str(), volume.as_ref().map(json)),
            Self::Snapshot(id, snapshot) => (2, id.as_str(), snapshot.as_ref().map(json)),
            Self::Group(id, group) => (3, id.as_str(), group.as_ref().map(json)),
            Self::StorageHealth(node, issues) => {
                let content = (!issues.is_empty()).then(|| json(&(node, issues)));
                (4, node.as_ref().map_or("", NodeId::as_str), content)
            }
            Self::Node(id, settings) => (5, id.as_str(), Some(json(&(id, settings)))),
            Self::Pool(name, capacity) => (6, name.as_str(), Some(json(&(name, capacity)))),
        };
        ((Self::TABLES[table], key.to_owned()), content)
    }
}

// === impl Array ===

impl Array {
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.image().into_rows()
    }

    pub(super) fn done<T>(&mut self, reply: T, rows: impl Into<Vec<Row>>) -> Done<T> {
        let rows = rows.into();
        for row in &rows {
            self.apply(row.clone());
        }
        Done { reply, rows }
    }

    /// As [`Self::done`] for an operation that changes a volume.
    pub(super) fn replaced<T>(&mut self, reply: T, volume: Volume) -> Done<T> {
        self.done(reply, [Row::Volume(volume.spec.id.clone(), Some(volume))])
    }
}

pub(crate) fn json(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
    serde_json::to_vec(value).expect("state must be representable as JSON")
}
