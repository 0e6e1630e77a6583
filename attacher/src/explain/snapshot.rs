//! What was read of the cluster for one explanation, and what could not be.

use std::collections::BTreeMap;

use super::objects::{Attachment, Claim, Class, CsiDriver, CsiNode, Event, Lease, Node, Pod, Volume};
use super::subject::Subject;

/// Namespace and name.
pub(super) type Place = (String, String);

/// One object, or why it is not here.
#[derive(Clone, Debug, Default)]
pub(super) enum Look<T> {
    /// It was read.
    Found(T),
    /// There is no such object.
    Absent,
    /// It could not be read, as a gap of the snapshot tells; nothing may be concluded.
    #[default]
    Unknown,
}

/// Everything that was looked at. Diagnoses are made from this alone.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// What was asked about.
    pub(super) subject: Subject,
    /// Pods that use a volume concerned.
    pub(super) pods: Vec<Pod>,
    /// Whether some pods could not be seen, so that a volume without pod may have one.
    pub(super) pods_hidden: bool,
    pub(super) claims: BTreeMap<Place, Look<Claim>>,
    pub(super) volumes: BTreeMap<String, Look<Volume>>,
    pub(super) classes: BTreeMap<String, Look<Class>>,
    /// Attachments of a volume or to a node concerned.
    pub(super) attachments: Vec<Attachment>,
    /// Whether all attachments were looked through, so that one that is not here is not there.
    pub(super) attachments_complete: bool,
    pub(super) nodes: BTreeMap<String, Look<Node>>,
    pub(super) csi_nodes: BTreeMap<String, Look<CsiNode>>,
    pub(super) drivers: BTreeMap<String, Look<CsiDriver>>,
    /// For each driver the leases of its attacher, in whichever namespaces.
    pub(super) leases: BTreeMap<String, Look<Vec<Lease>>>,
    /// Pods whose names stand in those leases.
    pub(super) holders: BTreeMap<Place, Look<Pod>>,
    /// Warnings about objects concerned.
    pub(super) events: Vec<Event>,
    /// What could not be read, in sentences.
    pub(super) gaps: Vec<String>,
}

// === impl Look ===

impl<T> Look<T> {
    pub(super) fn found(&self) -> Option<&T> {
        match self {
            Self::Found(object) => Some(object),
            Self::Absent | Self::Unknown => None,
        }
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}
