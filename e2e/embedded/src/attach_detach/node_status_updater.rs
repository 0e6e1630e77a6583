//! Writes `volumesAttached` into the status of nodes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::SharedState;
use crate::informer::Informer;
use crate::volume::UniqueVolumeName;

/// Patches the nodes whose report changed.
#[derive(Clone)]
pub(crate) struct NodeStatusUpdater {
    client: Client,
    nodes: Informer<Node>,
    state: Arc<SharedState>,
}

// === impl NodeStatusUpdater ===

impl NodeStatusUpdater {
    pub(crate) fn new(client: Client, nodes: Informer<Node>, state: Arc<SharedState>) -> Self {
        Self { client, nodes, state }
    }

    /// Writes the report of every node that needs it. Ends with the first failure; the rest follows in the next
    /// round.
    ///
    /// # Errors
    /// The API server refused a patch; the node is marked for another try.
    pub(crate) async fn update_node_statuses(&self) -> kube::Result<()> {
        let mut reports = self
            .state
            .lock()
            .actual
            .get_volumes_to_report_attached()
            .into_iter();
        while let Some((node, volumes)) = reports.next() {
            if let Err(error) = self.update(&node, &volumes).await {
                let mut state = self.state.lock();
                for (node, _) in reports {
                    state.actual.set_node_status_update_needed(&node);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Writes the report of one node if it needs it.
    ///
    /// # Errors
    /// As those of [`Self::update_node_statuses`].
    pub(crate) async fn update_node_status_for_node(&self, node: &str) -> kube::Result<()> {
        let volumes = self
            .state
            .lock()
            .actual
            .get_volumes_to_report_attached_for_node(node);
        match volumes {
            Some(volumes) => self.update(node, &volumes).await,
            None => Ok(()),
        }
    }

    async fn update(&self, node: &str, volumes: &[(UniqueVolumeName, String)]) -> kube::Result<()> {
        if self.nodes.get("", node).is_none() {
            // A node that does not exist has no status; it is written when the node is created.
            return Ok(());
        }
        let patch = Patch::Strategic(json!({"status": {"volumesAttached": report(volumes)}}));
        let nodes = Api::<Node>::all(self.client.clone());
        let patched = nodes.patch_status(node, &PatchParams::default(), &patch).await;
        if let Err(error) = patched {
            self.state.lock().actual.set_node_status_update_needed(node);
            return Err(error);
        }
        Ok(())
    }
}

/// An empty list is written as null: an omitted field would be left as it is.
fn report(volumes: &[(UniqueVolumeName, String)]) -> Value {
    if volumes.is_empty() {
        return Value::Null;
    }
    volumes
        .iter()
        .map(|(name, device_path)| json!({"name": name, "devicePath": device_path}))
        .collect()
}
