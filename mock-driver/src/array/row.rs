//! The state as rows, which are stored separately.

use serde::{Deserialize, Serialize};

use super::{Array, Change, GroupId, Image, NodeId, PoolName, SnapshotId, VolumeId};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowId {
    Counters,
    Volume(VolumeId),
    Snapshot(SnapshotId),
    Group(GroupId),
    VolumeHealth(VolumeId),
    /// The storage behind a node, or behind all nodes.
    StorageHealth(Option<NodeId>),
    Node(NodeId),
    Pool(PoolName),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counters {
    pub(crate) id_seed: u128,
    pub(crate) created: u64,
    pub(crate) attached: u64,
    pub(crate) initial_volumes: u64,
    pub(crate) made: u64,
}

// === impl RowId ===

impl RowId {
    /// The tables of all rows.
    pub(crate) const TABLES: [&'static str; 8] = [
        "counters",
        "volumes",
        "snapshots",
        "groups",
        "volume_health",
        "storage_health",
        "nodes",
        "pools",
    ];

    pub(crate) fn table(&self) -> &'static str {
        let number = match self {
            Self::Counters => 0,
            Self::Volume(_) => 1,
            Self::Snapshot(_) => 2,
            Self::Group(_) => 3,
            Self::VolumeHealth(_) => 4,
            Self::StorageHealth(_) => 5,
            Self::Node(_) => 6,
            Self::Pool(_) => 7,
        };
        Self::TABLES[number]
    }

    /// The key in its table.
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Counters | Self::StorageHealth(None) => "",
            Self::Volume(id) | Self::VolumeHealth(id) => id.as_str(),
            Self::Snapshot(id) => id.as_str(),
            Self::Group(id) => id.as_str(),
            Self::StorageHealth(Some(id)) | Self::Node(id) => id.as_str(),
            Self::Pool(name) => name.as_str(),
        }
    }
}

// === impl Change ===

impl Change {
    /// The rows that a change may affect.
    pub(crate) fn rows(&self) -> Vec<RowId> {
        match self {
            Self::Created { spec } => vec![RowId::Counters, RowId::Volume(spec.id.clone())],
            Self::Deleted { volume } => {
                vec![RowId::Volume(volume.clone()), RowId::VolumeHealth(volume.clone())]
            }
            Self::Attached { volume, .. } => vec![RowId::Counters, RowId::Volume(volume.clone())],
            Self::Detached { volume, .. } | Self::Expanded { volume, .. } | Self::Modified { volume, .. } => {
                vec![RowId::Volume(volume.clone())]
            }
            Self::VolumeHealth(unhealthy) => vec![RowId::VolumeHealth(unhealthy.volume.clone())],
            Self::StorageHealth { node, .. } => vec![RowId::StorageHealth(node.clone())],
            Self::Snapshotted { snapshot } => {
                vec![RowId::Counters, RowId::Snapshot(snapshot.id.clone())]
            }
            Self::SnapshotsReady { snapshots } => snapshots.iter().cloned().map(RowId::Snapshot).collect(),
            Self::SnapshotDeleted { snapshot } => vec![RowId::Snapshot(snapshot.clone())],
            Self::Grouped { group, snapshots } => {
                let snapshots = snapshots.iter().map(|snapshot| snapshot.id.clone());
                let rows = [RowId::Counters, RowId::Group(group.id.clone())];
                rows.into_iter().chain(snapshots.map(RowId::Snapshot)).collect()
            }
            Self::GroupDeleted { group, snapshots } => {
                let snapshots = snapshots.iter().cloned().map(RowId::Snapshot);
                std::iter::once(RowId::Group(group.clone()))
                    .chain(snapshots)
                    .collect()
            }
            Self::PoolResized { pool, .. } => vec![RowId::Pool(pool.clone())],
            Self::NodeSet { node, .. } => vec![RowId::Node(node.clone())],
            Self::NodeRenamed { from, to, .. } => [from, to]
                .into_iter()
                .flat_map(|node| {
                    [
                        RowId::Node(node.clone()),
                        RowId::StorageHealth(Some(node.clone())),
                    ]
                })
                .collect(),
        }
    }
}

// === impl Array ===

impl Array {
    /// A row as JSON; `None` if it does not exist.
    pub(crate) fn row(&self, id: &RowId) -> Option<Vec<u8>> {
        match id {
            RowId::Counters => Some(json(&self.counters())),
            RowId::Volume(id) => self.volumes.get(id).map(json),
            RowId::Snapshot(id) => self.snapshots.get(id).map(json),
            RowId::Group(id) => self.groups.get(id).map(json),
            RowId::VolumeHealth(id) => self.unhealthy.get(id).map(json),
            RowId::StorageHealth(node) => self.storage.get(node).map(|issues| json(&(node, issues))),
            RowId::Node(id) => self.changed.get(id).map(|settings| json(&(id, settings))),
            RowId::Pool(name) => self.resized.get(name).map(|capacity| json(&(name, capacity))),
        }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = RowId> {
        let volumes = self.volumes.keys().cloned().map(RowId::Volume);
        let snapshots = self.snapshots.keys().cloned().map(RowId::Snapshot);
        let groups = self.groups.keys().cloned().map(RowId::Group);
        let unhealthy = self.unhealthy.keys().cloned().map(RowId::VolumeHealth);
        let storage = self.storage.keys().cloned().map(RowId::StorageHealth);
        let nodes = self.changed.keys().cloned().map(RowId::Node);
        let pools = self.resized.keys().cloned().map(RowId::Pool);
        let parts = volumes
            .chain(snapshots)
            .chain(groups)
            .chain(unhealthy)
            .chain(storage);
        std::iter::once(RowId::Counters)
            .chain(parts)
            .chain(nodes)
            .chain(pools)
    }

    fn counters(&self) -> Counters {
        Counters {
            id_seed: self.id_seed,
            created: self.created,
            attached: self.attached,
            initial_volumes: self.initial_volumes,
            made: self.made,
        }
    }
}

// === impl Image ===

impl Image {
    /// An empty image with these counters.
    pub(crate) fn empty(counters: Counters) -> Self {
        let Counters {
            id_seed,
            created,
            attached,
            initial_volumes,
            made,
        } = counters;
        Self {
            id_seed,
            created,
            attached,
            initial_volumes,
            made,
            ..Self::default()
        }
    }
}

pub(crate) fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("state must be representable as JSON")
}
