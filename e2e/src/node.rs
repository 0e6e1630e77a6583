//! Node stand-ins: what a kubelet does to the API for volumes, without a machine behind it.
//!
//! A [`SimulatedNode`] owns one Node, its CSINode and its heartbeat lease, follows the pods bound to the node
//! and does for them what kubelet's volume manager and status manager do: it reports a volume in
//! `volumesInUse` before it uses it, waits for the controller's `volumesAttached`, checks the
//! VolumeAttachment, reports the pod Running, and on the pod's deletion ends it, unmounts, takes the volume
//! out of `volumesInUse` and removes the pod. Everything it does is in its [`NodeEventLog`].
//!
//! All of it is driven by watches; the only timer is the heartbeat. Many stand-ins fit into one process.

mod api;
pub mod event_log;
mod kubelet;
pub mod volume_manager;

use anyhow::{Context, Result};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use api::attachment_name;
pub use event_log::{NodeEvent, NodeEventLog};

use crate::fixture::{NODE_LEASE_NAMESPACE, mk_csi_node, mk_node, mk_node_lease};

/// A node of the cluster, run by a task of this process.
pub struct SimulatedNode {
    client: Client,
    name: String,
    node_id: String,
    stop: CancellationToken,
    task: JoinSet<()>,
}

// === impl SimulatedNode ===

impl SimulatedNode {
    /// Registers the node `name`, which `driver` knows as `node_id`, and starts to play it.
    ///
    /// # Errors
    /// The API server refused one of the node's objects.
    pub async fn register(
        client: Client,
        prefix: &str,
        name: &str,
        driver: &str,
        node_id: &str,
        event_log: NodeEventLog,
    ) -> Result<Self> {
        let create = PostParams::default();
        let node = Api::<Node>::all(client.clone())
            .create(&create, &mk_node(prefix, name, Timestamp::now()))
            .await
            .with_context(|| format!("register node {name}"))?;
        Api::<Lease>::namespaced(client.clone(), NODE_LEASE_NAMESPACE)
            .create(&create, &mk_node_lease(&node, Timestamp::now()))
            .await
            .with_context(|| format!("create the heartbeat lease of node {name}"))?;
        Api::<CSINode>::all(client.clone())
            .create(&create, &mk_csi_node(prefix, &node, driver, node_id))
            .await
            .with_context(|| format!("register driver {driver} on node {name}"))?;

        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let api = api::NodeApi::new(client.clone(), name.to_owned(), event_log);
        task.spawn(kubelet::Kubelet::new(api).run(stop.clone()));
        Ok(Self {
            client,
            name: name.to_owned(),
            node_id: node_id.to_owned(),
            stop,
            task,
        })
    }

    /// Name of the node in Kubernetes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the node at the driver; never the same as [`Self::name`], so that a mix-up fails.
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    /// Registers the driver under another id, as kubelet does: it takes the old entry out first, for it may not be
    /// changed.
    ///
    /// # Errors
    /// The API server refused the CSINode.
    pub async fn reregister(&self, driver: &str, node_id: &str) -> Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let entry = json!({"name": driver, "nodeID": node_id});
        for drivers in [json!([]), json!([entry])] {
            let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
            csi_nodes
                .patch(&self.name, &PatchParams::default(), &patch)
                .await
                .with_context(|| format!("register driver {driver} again on node {}", self.name))?;
        }
        Ok(())
    }

    /// The driver knows the node by another id.
    pub fn set_node_id(&mut self, node_id: &str) {
        node_id.clone_into(&mut self.node_id);
    }

    /// Goes down without a word: nothing is unmounted or reported any more, and the heartbeat ends.
    pub fn crash(&self) {
        self.stop.cancel();
    }

    /// Stops playing the node and takes its objects back. Its pods must be gone by then.
    ///
    /// # Errors
    /// The API server refused to delete an object, or the kubelet's task panicked.
    pub async fn deregister(mut self) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.task.join_next().await {
            ended.with_context(|| format!("the stand-in of node {} broke", self.name))?;
        }
        let delete = DeleteParams::default();
        let leases = Api::<Lease>::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        ignore_not_found(leases.delete(&self.name, &delete).await.map(drop))?;
        ignore_not_found(
            Api::<CSINode>::all(self.client.clone())
                .delete(&self.name, &delete)
                .await
                .map(drop),
        )?;
        ignore_not_found(
            Api::<Node>::all(self.client.clone())
                .delete(&self.name, &delete)
                .await
                .map(drop),
        )
    }
}

/// Deleting what the garbage collector was quicker to delete is no failure.
fn ignore_not_found(deleted: kube::Result<()>) -> Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => Ok(deleted?),
    }
}
