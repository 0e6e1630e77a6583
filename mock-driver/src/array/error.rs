//! Errors of the array. Messages name the volume, the node and the remedy.

use std::fmt::Write;

use super::{NodeId, PoolName, SnapshotId, VolumeId};

/// An error of the array. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("volume \"{volume}\" does not exist")]
    VolumeNotFound { volume: String },
    #[error("node \"{node}\" does not exist: it is not registered with the array")]
    NodeNotFound { node: String },
    #[error("snapshot \"{snapshot}\" does not exist")]
    SnapshotNotFound { snapshot: String },
    #[error("group snapshot \"{group}\" does not exist")]
    GroupNotFound { group: String },
    #[error("pool \"{pool}\" does not exist: there are {known}")]
    PoolNotFound { pool: String, known: String },
    #[error(
        "pool \"{pool}\" cannot be made smaller than {used} bytes, which its volumes and snapshots have: \
         delete some of them first"
    )]
    PoolInUse { pool: PoolName, used: u64 },
    #[error("pool \"{pool}\" must not exceed {most} bytes")]
    PoolTooLarge { pool: PoolName, most: u64 },
    #[error(
        "{kind} \"{name}\" already exists as \"{existing}\" with another {field}: \
         ask for the same or take another name"
    )]
    NameTaken {
        kind: &'static str,
        name: String,
        existing: String,
        /// The first request field that differs.
        field: &'static str,
    },
    #[error("{field}: {reason}")]
    Illegal { field: String, reason: String },
    #[error("insufficient capacity: {reason}")]
    InsufficientCapacity { reason: String },
    #[error("snapshot \"{snapshot}\" is not ready to use yet: try again")]
    NotReady { snapshot: SnapshotId },
    #[error("{what} is in use: {dependants} depend on it; delete those first")]
    HasDependants { what: String, dependants: String },
    #[error(
        "volume \"{volume}\" is published to node {} and can only be expanded offline: unpublish it first",
        list(.nodes)
    )]
    Online { volume: VolumeId, nodes: Vec<NodeId> },
    #[error("the volumes cannot be grouped: they lie in different pools, {pools}")]
    CannotGroup { pools: String },
    #[error(
        "volume \"{volume}\" is not accessible from node \"{node}\": the volume is in {required}, the node in {topology}; \
         publish it to a node in its topology"
    )]
    OutOfReach {
        volume: VolumeId,
        node: NodeId,
        /// That of the volume's pool.
        required: String,
        /// That of the node.
        topology: String,
    },
    #[error("capacity_range: {reason}")]
    SizeOutOfRange { reason: String },
    #[error("volume \"{volume}\" is in use: published to node {}; unpublish it first", list(.nodes))]
    InUse { volume: VolumeId, nodes: Vec<NodeId> },
    #[error("volume \"{volume}\" was not created for {asked}")]
    NotSupported { volume: VolumeId, asked: String },
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
    #[error(
        "volume \"{volume}\" is already published to node \"{node}\" as {held}: \
         unpublish it there first"
    )]
    AttachedElsewhere {
        volume: VolumeId,
        node: NodeId,
        held: &'static str,
    },
    #[error("node \"{node}\" is full: {limit} volumes are published to it, its limit")]
    NodeFull { node: NodeId, limit: usize },
    #[error("invalid starting_token: restart the list without a token")]
    ForeignToken,
}

// === impl Error ===

impl Error {
    pub(super) fn illegal(field: &str, reason: String) -> Self {
        let field = field.to_owned();
        Self::Illegal { field, reason }
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
