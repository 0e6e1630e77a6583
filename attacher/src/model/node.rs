//! A CSINode.

use std::sync::Arc;

use jiff::Timestamp;

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
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
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
        let created = object.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let (name, uid, version) = wire::identity(object.metadata);
        Self {
            name,
            uid,
            version,
            created,
            id,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::mk_driver;

    #[test]
    fn has_the_time_of_its_creation() {
        let object = serde_json::json!({
            "metadata": {"name": "node", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"drivers": []},
        });
        let object = serde_json::from_value(object).expect("a CSINode");
        let created = Node::from_wire(object, &mk_driver()).created;
        assert_eq!(created, "2026-01-01T00:00:00Z".parse().ok());
    }
}
