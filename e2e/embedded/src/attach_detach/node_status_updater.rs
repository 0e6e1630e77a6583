//! Writes `volumesAttached` into the status of nodes.

use std::sync::Arc;

use futures::stream::{FuturesUnordered, StreamExt};
use k8s_openapi::api::core::v1::{AttachedVolume, Node};
use kube::api::PatchParams;
use kube::{Api, Client};

use super::SharedState;
use crate::api_error::ignore_not_found;
use crate::informer::Informer;
use crate::node;
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
        let Some(known) = self.nodes.get("", node) else {
            // The node does not exist; its status is written when the node is created.
            return Ok(());
        };
        let attached: Vec<_> = volumes
            .iter()
            .map(|(name, device_path)| AttachedVolume {
                name: name.clone(),
                device_path: device_path.clone(),
            })
            .collect();
        let known = known.status.as_ref();
        let known = known.and_then(|status| status.volumes_attached.as_deref());
        let patch = node::status_patch("volumesAttached", known, &attached);
        let nodes = Api::<Node>::all(self.client.clone());
        let patched = nodes.patch_status(node, &PatchParams::default(), &patch).await;
        ignore_not_found(patched)
            .inspect_err(|_| self.state.lock().actual.set_node_status_update_needed(node))
    }
}
