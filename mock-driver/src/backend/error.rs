//! Why the array refused something. Texts name the volume, the node and the way out.

use super::{NodeId, VolumeId};

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
    /// A volume of that name exists and is not what was asked for.
    #[error(
        "volume \"{name}\" already exists as \"{volume}\" with another {field}: \
         ask for the same or take another name"
    )]
    NameTaken {
        /// The name asked for.
        name: String,
        /// The volume that has it.
        volume: VolumeId,
        /// The first request field that differs.
        field: &'static str,
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
    #[error("starting_token is not one this driver gave out: start again without a token")]
    ForeignToken,
}

fn list(nodes: &[NodeId]) -> String {
    let quoted: Vec<String> = nodes.iter().map(|node| format!("\"{node}\"")).collect();
    quoted.join(", ")
}
