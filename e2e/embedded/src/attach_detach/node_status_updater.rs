//! Writes `volumesAttached` into the status of nodes.

use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::SharedState;
use crate::api_error::ignore_not_found;
use crate::informer::Informer;
use crate::volume::UniqueVolumeName;

/// Patches the nodes whose `volumesAttached` changed.
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

    /// Writes `volumesAttached` of every node that needs an update.
    ///
    /// # Errors
    /// An error of a patch; the nodes of failed patches are marked for a retry.
    pub(crate) async fn update_node_statuses(&self) -> kube::Result<()> {
        let reports = self.state.lock().actual.get_volumes_to_report_attached();
        let updates = reports
            .iter()
            .map(|(node, volumes)| self.update(node, volumes))
            .collect::<FuturesUnordered<_>>();
        updates
            .fold(Ok(()), async |result, updated| updated.and(result))
            .await
    }

    /// Writes `volumesAttached` of one node if it needs an update.
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
            // The node does not exist; its status is written when the node is created.
            return Ok(());
        }
        let patch = Patch::Strategic(json!({"status": {"volumesAttached": report(volumes)}}));
        let nodes = Api::<Node>::all(self.client.clone());
        let patched = nodes.patch_status(node, &PatchParams::default(), &patch).await;
        ignore_not_found(patched)
            .inspect_err(|_| self.state.lock().actual.set_node_status_update_needed(node))
    }
}

/// An empty list is written as null, because a patch does not change omitted fields.
fn report(volumes: &[(UniqueVolumeName, String)]) -> Value {
    if volumes.is_empty() {
        return Value::Null;
    }
    volumes
        .iter()
        .map(|(name, device_path)| json!({"name": name, "devicePath": device_path}))
        .collect()
}
