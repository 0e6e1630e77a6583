//! Nodes that join an array in another process.

use http::Method;

use super::{Client, Error};
use crate::admin::resource::{Node, NodeNew};

// === impl Client ===

impl Client {
    /// Registers a node, as when a machine joins. One that is known stays as it is but for what is given.
    ///
    /// # Errors
    /// As for every request: [`Error`].
    pub async fn register_node(&self, new: &NodeNew) -> Result<Node, Error> {
        self.send(Method::POST, "/api/v1/nodes", Some(new)).await
    }
}
