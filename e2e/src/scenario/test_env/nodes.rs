//! Nodes of a test environment.

use anyhow::{Context, Result};

use super::TestEnv;
use crate::driver::journal::MountEvent;
use crate::node::{Node, NodeSpec};

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Adds the `index`th node: a real one, if the test context has it.
    pub(super) async fn add_node(&mut self, index: usize, with_driver: bool) -> Result<()> {
        let letter = char::from(b'a' + u8::try_from(index).context("a test environment has few nodes")?);
        let real = self.ctx.real_node(index);
        let name = match real {
            Some(real) => real.name().to_owned(),
            None => format!("{}-{letter}", self.prefix),
        };
        let node_id = self.driver.node_id(index)?;
        let driver = match with_driver {
            true => Some(self.driver.start_node(index, real.map(AsRef::as_ref)).await?),
            false => None,
        };
        let spec = NodeSpec {
            prefix: &self.prefix,
            name: &name,
            driver_name: self.driver.name(),
            node_id: &node_id,
            driver,
            real: real.cloned(),
        };
        self.nodes.push(Node::register(self.client(), spec).await?);
        Ok(())
    }

    /// The `index`th node.
    ///
    /// # Panics
    /// If the scenario's setup has fewer nodes.
    pub fn node(&self, index: usize) -> &Node {
        self.nodes
            .get(index)
            .expect("ScenarioConfig::nodes must cover the nodes its scenario uses")
    }

    /// Removes the driver from the node.
    pub async fn uninstall_driver(&self, node: usize) -> Result<()> {
        self.node(node).uninstall_driver().await
    }

    /// Installs the driver on the node again.
    pub async fn install_driver(&mut self, node: usize) -> Result<()> {
        self.nodes[node].install_driver().await
    }

    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Mounts and unmounts by the nodes' drivers so far, by time.
    pub fn mount_events(&self) -> Result<Vec<MountEvent>> {
        let mut events = Vec::new();
        for node in &self.nodes {
            events.extend(node.mount_events()?);
        }
        events.sort_by_key(|event| event.at);
        Ok(events)
    }
}
