//! Simulated nodes: what a kubelet does to the API and to the driver for volumes, without a machine behind it.
//!
//! A [`SimulatedNode`] owns one Node, its CSINode and its heartbeat lease, follows the pods bound to the node
//! and does for them what kubelet's volume manager and status manager do: it reports a volume in
//! `volumesInUse` before it uses it, waits for the controller's `volumesAttached`, checks the
//! VolumeAttachment, calls NodeStageVolume and NodePublishVolume of the node's driver, reports the pod Running, and on
//! the pod's deletion ends it, unpublishes and unstages, takes the volume out of `volumesInUse` and removes the pod.
//!
//! All of it is driven by watches; the only timer is the heartbeat. Many simulated nodes fit into one process.

mod api;
mod csi;
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

use super::event_log::NodeEventLog;
use crate::cluster::ignore_not_found;
use crate::driver::NodeDriver;
use crate::fixture::{NODE_LEASE_NAMESPACE, mk_csi_node, mk_node, mk_node_lease};
use csi::CsiPlugin;

/// A node whose kubelet is a task of this process.
pub struct SimulatedNode {
    client: Client,
    name: String,
    node_id: String,
    driver_name: String,
    driver: Option<NodeDriver>,
    stop: CancellationToken,
    task: JoinSet<()>,
}

/// How a simulated node is set up.
pub struct SimulatedNodeSpec<'a> {
    /// Prefix of the scenario.
    pub prefix: &'a str,
    /// Name of the node.
    pub name: &'a str,
    /// Name of the driver.
    pub driver_name: &'a str,
    /// The driver's id of the node.
    pub node_id: &'a str,
    /// The node's driver process; without one the kubelet mounts nothing.
    pub driver: Option<NodeDriver>,
}

// === impl SimulatedNode ===

impl SimulatedNode {
    /// Registers the node and starts its kubelet.
    ///
    /// # Errors
    /// The API server refused one of the node's objects.
    pub async fn register(
        client: Client,
        spec: SimulatedNodeSpec<'_>,
        event_log: NodeEventLog,
    ) -> Result<Self> {
        let SimulatedNodeSpec {
            prefix,
            name,
            driver_name,
            node_id,
            driver,
        } = spec;
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
            .create(&create, &mk_csi_node(prefix, &node, driver_name, node_id))
            .await
            .with_context(|| format!("register driver {driver_name} on node {name}"))?;

        let stop = CancellationToken::new();
        let mut task = JoinSet::new();
        let plugin = match &driver {
            Some(driver) => Some(CsiPlugin::connect(driver).await?),
            None => None,
        };
        let api = api::NodeApi::new(client.clone(), name.to_owned(), event_log);
        task.spawn(kubelet::Kubelet::new(api, plugin).run(stop.clone()));
        Ok(Self {
            client,
            name: name.to_owned(),
            node_id: node_id.to_owned(),
            driver_name: driver_name.to_owned(),
            driver,
            stop,
            task,
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn node_id(&self) -> &str {
        &self.node_id
    }

    pub(super) fn driver(&self) -> Option<&NodeDriver> {
        self.driver.as_ref()
    }

    /// Removes the CSINode's entry before it adds the new one, as kubelet does: a nodeID is immutable.
    pub(super) async fn reregister(&self, node_id: &str) -> Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let entry = json!({"name": self.driver_name, "nodeID": node_id});
        for drivers in [json!([]), json!([entry])] {
            let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
            csi_nodes
                .patch(&self.name, &PatchParams::default(), &patch)
                .await
                .with_context(|| {
                    format!("register {} as {node_id} on node {}", self.driver_name, self.name)
                })?;
        }
        Ok(())
    }

    pub(super) fn set_node_id(&mut self, node_id: &str) {
        node_id.clone_into(&mut self.node_id);
    }

    pub(super) fn crash(&self) {
        self.stop.cancel();
    }

    pub(super) async fn deregister(mut self) -> Result<()> {
        self.stop.cancel();
        while let Some(ended) = self.task.join_next().await {
            ended.with_context(|| format!("the kubelet of node {} panicked", self.name))?;
        }
        if let Some(driver) = self.driver {
            driver.stop().await?;
        }
        let delete = DeleteParams::default();
        // The garbage collector may delete what the Node owns first.
        let leases = Api::<Lease>::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        ignore_not_found(leases.delete(&self.name, &delete).await)?;
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        ignore_not_found(csi_nodes.delete(&self.name, &delete).await)?;
        let nodes = Api::<Node>::all(self.client.clone());
        ignore_not_found(nodes.delete(&self.name, &delete).await)
    }
}
