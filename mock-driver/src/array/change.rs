//! Changes of an array: the unit of durability.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::health::{StorageHealthIssue, UnhealthyVolume};
use super::id::{GroupId, NodeId, PoolName, SnapshotId, VolumeId};
use super::node::NodeSettings;
use super::snapshot::Snapshot;
use super::volume::{Attachment, Spec};

/// A state transition. Applying it cannot fail and depends on the state only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the variants describe the fields")]
pub enum Change {
    /// A volume was created.
    Created { spec: Arc<Spec> },
    /// A volume was deleted.
    Deleted { volume: VolumeId },
    /// A volume was attached.
    Attached {
        volume: VolumeId,
        node: NodeId,
        attachment: Attachment,
    },
    /// A volume was detached.
    Detached { volume: VolumeId, nodes: Vec<NodeId> },
    /// A volume was expanded.
    Expanded { volume: VolumeId, capacity_bytes: u64 },
    /// Mutable parameters of a volume were changed.
    Modified {
        volume: VolumeId,
        qos: BTreeMap<String, String>,
    },
    /// Health issues of a volume changed.
    VolumeHealth(UnhealthyVolume),
    /// Health issues of the storage behind a node, or behind all nodes, changed.
    StorageHealth {
        /// The node; `None` for all.
        node: Option<NodeId>,
        /// Empty for healthy storage.
        issues: Vec<StorageHealthIssue>,
    },
    /// A snapshot was created.
    Snapshotted { snapshot: Arc<Snapshot> },
    /// Snapshots became ready to use.
    SnapshotsReady { snapshots: Vec<SnapshotId> },
    /// A snapshot was deleted.
    SnapshotDeleted { snapshot: SnapshotId },
    /// A group of snapshots was created.
    Grouped {
        group: Arc<Group>,
        snapshots: Vec<Arc<Snapshot>>,
    },
    /// A group was deleted with its snapshots.
    GroupDeleted {
        group: GroupId,
        snapshots: Vec<SnapshotId>,
    },
    /// The capacity of a pool changed.
    PoolResized { pool: PoolName, capacity: u64 },
    /// A node was registered, changed or deregistered.
    NodeSet { node: NodeId, settings: NodeSettings },
    /// The id of a node changed.
    NodeRenamed {
        from: NodeId,
        to: NodeId,
        settings: NodeSettings,
    },
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// The reply.
    pub reply: T,
    /// The change; `None` for a repeated request.
    pub change: Option<Change>,
}

// === impl Done ===

impl<T> Done<T> {
    /// The reply to a repeated request.
    pub(super) fn unchanged(reply: T) -> Self {
        Self { reply, change: None }
    }
}
