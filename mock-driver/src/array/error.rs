//! Errors of the array. Messages name the volume, the node and the remedy.

use std::fmt::{self, Write};

use super::{NodeId, PoolName, SnapshotId, VolumeId};

/// A refusal of the array. Nothing has changed when one is returned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such volume.
    #[error("volume \"{volume}\" does not exist")]
    VolumeNotFound {
        /// The id asked for.
        volume: String,
    },
    /// No such node.
    #[error("node \"{node}\" does not exist: it is not registered with the array")]
    NodeNotFound {
        /// The id asked for.
        node: String,
    },
    /// No such snapshot.
    #[error("snapshot \"{snapshot}\" does not exist")]
    SnapshotNotFound {
        /// The id asked for.
        snapshot: String,
    },
    /// No such group of snapshots.
    #[error("group snapshot \"{group}\" does not exist")]
    GroupNotFound {
        /// The id asked for.
        group: String,
    },
    /// No such pool.
    #[error("pool \"{pool}\" does not exist: there are {known}")]
    PoolNotFound {
        /// The name asked for.
        pool: String,
        /// Those there are.
        known: String,
    },
    /// More is promised in a pool than it is to have.
    #[error(
        "pool \"{pool}\" cannot be made smaller than {used} bytes, which its volumes and snapshots have: \
         delete some of them first"
    )]
    PoolInUse {
        /// The pool.
        pool: PoolName,
        /// The bytes that are promised.
        used: u64,
    },
    /// A pool larger than anything can be.
    #[error("pool \"{pool}\" must not exceed {most} bytes")]
    PoolTooLarge {
        /// The pool.
        pool: PoolName,
        /// The most it can have.
        most: u64,
    },
    /// Something of that name exists and is not what was asked for.
    #[error(
        "{kind} \"{name}\" already exists as \"{existing}\" with another {field}: \
         ask for the same or take another name"
    )]
    NameTaken {
        /// What it is.
        kind: Kind,
        /// The name asked for.
        name: String,
        /// The id of what has it.
        existing: String,
        /// The first request field that differs.
        field: &'static str,
    },
    /// A field whose value the array does not take.
    #[error("{field}: {reason}")]
    Illegal {
        /// The request field.
        field: String,
        /// What is wrong with it, and what would do.
        reason: String,
    },
    /// Insufficient capacity.
    #[error("insufficient capacity: {reason}")]
    NoRoom {
        /// What was looked for.
        reason: String,
    },
    /// Nothing can be made of it yet.
    #[error("snapshot \"{snapshot}\" is not ready to use yet: try again")]
    NotReady {
        /// The snapshot.
        snapshot: SnapshotId,
    },
    /// It cannot be deleted before what was made of it.
    #[error("{what} is in use: {dependants} depend on it; delete those first")]
    HasDependants {
        /// What was to be deleted.
        what: String,
        /// What was made of it.
        dependants: String,
    },
    /// It can only grow while it is not published.
    #[error(
        "volume \"{volume}\" is published to node {} and can only be expanded offline: unpublish it first",
        list(.nodes)
    )]
    Online {
        /// The volume.
        volume: VolumeId,
        /// Where it is attached.
        nodes: Vec<NodeId>,
    },
    /// There is no one moment for volumes of several pools.
    #[error("the volumes cannot be grouped: they lie in different pools, {pools}")]
    CannotGroup {
        /// The pools.
        pools: String,
    },
    /// The node is not where the volume is.
    #[error("volume \"{volume}\" is not accessible from node \"{node}\": its topology is {place}")]
    OutOfReach {
        /// The volume.
        volume: VolumeId,
        /// The node.
        node: NodeId,
        /// Where the volume is.
        place: String,
    },
    /// The range contains no size the array can make.
    #[error("capacity_range: {reason}")]
    SizeOutOfRange {
        /// What is wrong with it, with the bounds.
        reason: String,
    },
    /// The volume is attached somewhere and so cannot be deleted.
    #[error("volume \"{volume}\" is in use: published to node {}; unpublish it first", list(.nodes))]
    InUse {
        /// The volume.
        volume: VolumeId,
        /// Where it is attached.
        nodes: Vec<NodeId>,
    },
    /// The volume was not made for the asked use.
    #[error("volume \"{volume}\" was not created for {asked}")]
    NotSupported {
        /// The volume.
        volume: VolumeId,
        /// The capability asked for.
        asked: String,
    },
    /// Attached to that very node already, in another way.
    #[error(
        "volume \"{volume}\" is already published to node \"{node}\" with another {field}: \
         unpublish it first"
    )]
    AttachedDifferently {
        /// The volume.
        volume: VolumeId,
        /// The node.
        node: NodeId,
        /// The first request field that differs.
        field: &'static str,
    },
    /// Attached to another node, and the two may not share it.
    #[error(
        "volume \"{volume}\" is already published to node \"{node}\" as {held}: \
         unpublish it there first"
    )]
    AttachedElsewhere {
        /// The volume.
        volume: VolumeId,
        /// The node that has it.
        node: NodeId,
        /// The mode in which that node holds it.
        held: &'static str,
    },
    /// The node has no room for another volume.
    #[error("node \"{node}\" is full: {limit} volumes are published to it, its limit")]
    NodeFull {
        /// The node.
        node: NodeId,
        /// How many volumes it can take.
        limit: usize,
    },
    /// A page token this array did not give out.
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

/// How many items a message lists: the text becomes a header field, which HTTP/2 bounds.
const LISTED: usize = 5;

fn list(nodes: &[NodeId]) -> String {
    listed(nodes.iter().map(|node| format!("\"{node}\"")))
}

/// The first items, and how many more there are.
pub(super) fn listed(items: impl ExactSizeIterator<Item = String>) -> String {
    let more = items.len().saturating_sub(LISTED);
    let mut text = items.take(LISTED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        write!(text, " and {more} more").expect("a string must take any text");
    }
    text
}
