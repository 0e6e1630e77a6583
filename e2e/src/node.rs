//! Nodes of a test environment.
//!
//! A [`Node`] has a Node object, a CSINode, and unless the scenario mounts nothing a driver process of its own, whose
//! journal of NodeStage and NodePublish calls says what is mounted there. The variants differ in what runs the kubelet.

pub mod event_log;
pub mod simulated;

use anyhow::Result;

pub use event_log::{NodeEvent, NodeEventLog};
pub use simulated::{SimulatedNode, attachment_name};

use crate::driver::NodeDriver;
use crate::invariant::observations::MountEvent;

/// A node of a test environment. To add a kind of node, add a variant.
pub enum Node {
    /// Tasks of the harness do what kubelet's volume manager does.
    Simulated(SimulatedNode),
}

// === impl Node ===

impl Node {
    /// Name of the Node object.
    pub fn name(&self) -> &str {
        match self {
            Self::Simulated(node) => node.name(),
        }
    }

    /// The driver's id of the node; never the same as [`Self::name`], so that a mix-up fails.
    pub fn node_id(&self) -> &str {
        match self {
            Self::Simulated(node) => node.node_id(),
        }
    }

    /// The node's driver process.
    pub fn driver(&self) -> Option<&NodeDriver> {
        match self {
            Self::Simulated(node) => node.driver(),
        }
    }

    /// What the node's driver mounted and unmounted so far, in order.
    pub fn mount_events(&self) -> Result<Vec<MountEvent>> {
        self.driver()
            .map_or_else(|| Ok(Vec::new()), |driver| driver.mount_events(self.name()))
    }

    /// Registers the driver under another node id, as kubelet does after a re-registration.
    ///
    /// # Errors
    /// The API server refused the CSINode.
    pub async fn reregister(&self, node_id: &str) -> Result<()> {
        match self {
            Self::Simulated(node) => node.reregister(node_id).await,
        }
    }

    /// From now on the driver's id of the node is this one.
    pub fn set_node_id(&mut self, node_id: &str) {
        match self {
            Self::Simulated(node) => node.set_node_id(node_id),
        }
    }

    /// Crashes the node: nothing is unmounted or reported any more, and the heartbeat ends.
    pub fn crash(&self) {
        match self {
            Self::Simulated(node) => node.crash(),
        }
    }

    /// Stops the node and deletes its objects. Its pods must be gone by then.
    ///
    /// # Errors
    /// The API server refused to delete an object, or a process or task of the node failed.
    pub async fn deregister(self) -> Result<()> {
        match self {
            Self::Simulated(node) => node.deregister().await,
        }
    }
}
