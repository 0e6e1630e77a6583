//! A CSINode.

use std::sync::Arc;

use super::wire::{self, CsiNodeObject};
use super::{Driver, Uid, Version};

/// One CSINode, also without our driver, to distinguish an absent node from an unregistered driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// `metadata.name`, which is the Node's name.
    pub name: Arc<str>,
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`.
    pub version: Version,
    /// `nodeID` of our driver's entry in `spec.drivers`.
    pub id: Option<Arc<str>>,
}

// === impl Node ===

impl Node {
    /// Converts an object, with the node id of `driver`.
    pub fn from_wire(object: CsiNodeObject, driver: &Driver) -> Self {
        let id = object
            .spec
            .drivers
            .into_iter()
            .find(|entry| *entry.name == *driver.name)
            .map(|entry| entry.node_id.into());
        let (name, uid, version) = wire::identity(object.metadata);
        Self {
            name,
            uid,
            version,
            id,
        }
    }
}
