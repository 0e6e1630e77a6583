//! The objects that were read for one explanation, and the gaps.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};

use crate::resource::Resource;

/// Namespace and name of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NamespacedName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The result of reading one object.
#[derive(Clone, Debug, Default)]
pub(crate) enum Lookup<T> {
    Found(T),
    NotFound,
    /// The object could not be read (see the snapshot's gaps); no conclusion may be drawn.
    #[default]
    Unknown,
}

/// All objects that were read: the only input of `diagnose`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    /// The object to explain.
    pub(crate) resource: Resource,
    /// Pods that use one of the volumes.
    pub(crate) pods: Vec<Pod>,
    /// Whether some pods could not be read, so that a pod may use a seemingly unused volume.
    pub(crate) pods_incomplete: bool,
    pub(crate) claims: BTreeMap<NamespacedName, Lookup<PersistentVolumeClaim>>,
    pub(crate) volumes: BTreeMap<String, Lookup<PersistentVolume>>,
    pub(crate) classes: BTreeMap<String, Lookup<StorageClass>>,
    /// Attachments of one of the volumes, or to the node.
    pub(crate) attachments: Vec<VolumeAttachment>,
    /// Whether the list of VolumeAttachments is complete, so that others do not exist.
    pub(crate) attachments_complete: bool,
    pub(crate) nodes: BTreeMap<String, Lookup<Node>>,
    pub(crate) csi_nodes: BTreeMap<String, Lookup<CSINode>>,
    pub(crate) drivers: BTreeMap<String, Lookup<CSIDriver>>,
    /// For each driver, the leases of its attacher in all namespaces.
    pub(crate) leases: BTreeMap<String, Lookup<Vec<Lease>>>,
    /// Pods that hold those leases.
    pub(crate) holders: BTreeMap<NamespacedName, Lookup<Pod>>,
    /// Warning events about the objects above.
    pub(crate) events: Vec<Event>,
    /// Messages about objects that could not be read.
    pub(crate) gaps: Vec<String>,
}

// === impl NamespacedName ===

impl NamespacedName {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl Lookup ===

impl<T> Lookup<T> {
    pub(crate) fn found(&self) -> Option<&T> {
        match self {
            Self::Found(object) => Some(object),
            Self::NotFound | Self::Unknown => None,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound)
    }
}
