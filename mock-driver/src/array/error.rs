//! Errors of the array. Messages name the volume, the node and the remedy.

use std::fmt::{self, Write};

use super::{NodeId, PoolName, SnapshotId, VolumeId};

/// An error of the array. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the fields")]
pub enum Error {
    /// The volume does not exist.
    #[error("volume \"{volume}\" does not exist")]
    VolumeNotFound { volume: String },
    /// The node does not exist.
    #[error("node \"{node}\" does not exist: it is not registered with the array")]
    NodeNotFound { node: String },
    /// The snapshot does not exist.
    #[error("snapshot \"{snapshot}\" does not exist")]
    SnapshotNotFound { snapshot: String },
    /// The group of snapshots does not exist.
    #[error("group snapshot \"{group}\" does not exist")]
    GroupNotFound { group: String },
    /// The pool does not exist.
    #[error("pool \"{pool}\" does not exist: there are {known}")]
    PoolNotFound { pool: String, known: String },
    /// The new capacity of a pool is below its allocated bytes.
    #[error(
        "pool \"{pool}\" cannot be made smaller than {used} bytes, which its volumes and snapshots have: \
         delete some of them first"
    )]
    PoolInUse { pool: PoolName, used: u64 },
    /// The capacity of a pool is too large.
    #[error("pool \"{pool}\" must not exceed {most} bytes")]
    PoolTooLarge { pool: PoolName, most: u64 },
    /// An object of that name exists with other properties.
    #[error(
        "{kind} \"{name}\" already exists as \"{existing}\" with another {field}: \
         ask for the same or take another name"
    )]
    NameTaken {
        kind: Kind,
        name: String,
        existing: String,
        /// The first request field that differs.
        field: &'static str,
    },
    /// The value of a field is not supported.
    #[error("{field}: {reason}")]
    Illegal { field: String, reason: String },
    /// Insufficient capacity.
    #[error("insufficient capacity: {reason}")]
    InsufficientCapacity { reason: String },
    /// The snapshot is not ready to use.
    #[error("snapshot \"{snapshot}\" is not ready to use yet: try again")]
    NotReady { snapshot: SnapshotId },
    /// Copies depend on the volume or snapshot.
    #[error("{what} is in use: {dependants} depend on it; delete those first")]
    HasDependants { what: String, dependants: String },
    /// The volume can be expanded only while it is not attached.
    #[error(
        "volume \"{volume}\" is published to node {} and can only be expanded offline: unpublish it first",
        list(.nodes)
    )]
    Online { volume: VolumeId, nodes: Vec<NodeId> },
    /// Volumes of several pools have no consistent point in time.
    #[error("the volumes cannot be grouped: they lie in different pools, {pools}")]
    CannotGroup { pools: String },
    /// The topology of the node does not reach the volume.
    #[error("volume \"{volume}\" is not accessible from node \"{node}\": its topology is {topology}")]
    OutOfReach {
        volume: VolumeId,
        node: NodeId,
        topology: String,
    },
    /// No supported size is within the capacity range.
    #[error("capacity_range: {reason}")]
    SizeOutOfRange { reason: String },
    /// The volume is attached and cannot be deleted.
    #[error("volume \"{volume}\" is in use: published to node {}; unpublish it first", list(.nodes))]
    InUse { volume: VolumeId, nodes: Vec<NodeId> },
    /// The volume was not created for the capability.
    #[error("volume \"{volume}\" was not created for {asked}")]
    NotSupported { volume: VolumeId, asked: String },
    /// The volume is attached to the node with other arguments.
    #[error(
        "volume \"{volume}\" is already published to node \"{node}\" with another {field}: \
         unpublish it first"
    )]
    AttachedDifferently {
        volume: VolumeId,
        node: NodeId,
        /// The first request field that differs.
        field: &'static str,
    },
    /// The volume is attached to another node, and the access modes exclude each other.
    #[error(
        "volume \"{volume}\" is already published to node \"{node}\" as {held}: \
         unpublish it there first"
    )]
    AttachedElsewhere {
        volume: VolumeId,
        node: NodeId,
        held: &'static str,
    },
    /// The attach limit of the node is reached.
    #[error("node \"{node}\" is full: {limit} volumes are published to it, its limit")]
    NodeFull { node: NodeId, limit: usize },
    /// The page token is not from this array.
    #[error("invalid starting_token: restart the list without a token")]
    ForeignToken,
}

/// Kind of a named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A volume.
    Volume,
    /// A snapshot.
    Snapshot,
    /// A group of snapshots.
    Group,
}

// === impl Kind ===

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Group => "group snapshot",
        })
    }
}

/// Maximum number of items listed in a message, which becomes an HTTP/2 header field.
const LISTED: usize = 5;

fn list(nodes: &[NodeId]) -> String {
    listed(nodes.iter().map(|node| format!("\"{node}\"")))
}

/// The first items and the number of further ones.
pub(super) fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(LISTED);
    let mut text = items.take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        write!(text, " and {more} more").expect("a string must take any text");
    }
    text
}
