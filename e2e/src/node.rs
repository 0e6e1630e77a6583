//! Nodes of a test environment: a simulated or a real kubelet against the cluster's API server, and the node's driver
//! process, whose socket the kubelet calls.
//!
//! The journal of that process records NodeStage and NodePublish calls, and thus the mounts of the node, for both kinds of
//! kubelet.

mod kubelet;
mod mountless_driver;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as ApiNode;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, Patch, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::cluster::ignore_not_found;
use crate::driver::NodeDriver;
use crate::driver::journal::MountEvent;
use crate::fixture::NODE_LEASE_NAMESPACE;
use crate::nodes::RealNode;
use crate::objects;
use crate::wait::{self, Progress};
use kubelet::Kubelet;

/// Taint of a Node that is not ready; the admission plugin TaintNodesByCondition adds it to a new Node.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
/// Timeout until the kubelet has registered, or deregistered, the node and driver, and until the taint is removed.
const REGISTERED: Duration = Duration::from_secs(60);

/// A node of a test environment.
pub struct Node {
    client: Client,
    name: String,
    node_id: String,
    driver_name: String,
    driver: Option<NodeDriver>,
    kubelet: Kubelet,
}

/// Configuration of a node.
pub struct NodeSpec<'a> {
    /// Prefix of the scenario.
    pub prefix: &'a str,
    /// Name of the node.
    pub name: &'a str,
    /// Name of the driver.
    pub driver_name: &'a str,
    /// The driver's id of the node.
    pub node_id: &'a str,
    /// The node's driver process; without it no volume is mounted.
    pub driver: Option<NodeDriver>,
    /// The real node of this name; without it the kubelet is simulated.
    pub real: Option<Arc<RealNode>>,
}

// === impl Node ===

impl Node {
    /// Starts the node's kubelet, unless it is real, and waits until it has registered the node and the driver, and until
    /// pods can be scheduled to the node.
    ///
    /// # Errors
    /// The kubelet did not register them, or the node lifecycle controller did not remove the taint, in time.
    pub async fn register(client: Client, spec: NodeSpec<'_>) -> Result<Self> {
        let node = Self {
            kubelet: Kubelet::start(client.clone(), &spec),
            client,
            name: spec.name.to_owned(),
            node_id: spec.node_id.to_owned(),
            driver_name: spec.driver_name.to_owned(),
            driver: spec.driver,
        };
        node.wait_for_registration(true).await?;
        node.wait_until_schedulable().await?;
        Ok(node)
    }

    /// Waits until the node lifecycle controller has removed the taint of a new Node. kube-scheduler reports only the first
    /// reason why it cannot schedule a pod: a later one increases the count of that Event, which keeps its note.
    async fn wait_until_schedulable(&self) -> Result<()> {
        let nodes = Api::<ApiNode>::all(self.client.clone());
        let what = format!("removal of the taint {NOT_READY} from {}", self.name);
        wait::for_object(&nodes, &self.name, REGISTERED, &what, |node| {
            let taints = node.map(|node| {
                let spec = node.spec.as_ref();
                spec.and_then(|spec| spec.taints.as_deref()).unwrap_or_default()
            });
            let schedulable = taints.is_some_and(|taints| taints.iter().all(|taint| taint.key != NOT_READY));
            Progress::of(schedulable, || format!("its taints are {taints:?}"))
        })
        .await
    }

    /// Waits until the CSINode has, or has not, the driver with the node's id.
    async fn wait_for_registration(&self, wanted: bool) -> Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let what = format!(
            "registration of {} by the kubelet of {} to be {wanted}",
            self.driver_name, self.name
        );
        wait::for_object(&csi_nodes, &self.name, REGISTERED, &what, |csi_node| {
            let drivers = csi_node.map(|csi_node| csi_node.spec.drivers.as_slice());
            let mut drivers = drivers.unwrap_or_default().iter();
            let found = drivers.find(|driver| driver.name == self.driver_name);
            let registered = found.is_some_and(|driver| driver.node_id == self.node_id);
            Progress::of(registered == wanted, || format!("it is {found:?}"))
        })
        .await
    }

    /// Name of the Node object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver's id of the node; always different from [`Self::name`], so that confusing them fails.
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    /// The node's driver process.
    pub fn driver(&self) -> Option<&NodeDriver> {
        self.driver.as_ref()
    }

    /// Mounts and unmounts of the node's driver so far, in order.
    pub fn mount_events(&self) -> Result<Vec<MountEvent>> {
        self.driver()
            .map_or_else(|| Ok(Vec::new()), |driver| driver.mount_events(self.name()))
    }

    /// Registers the driver under another node id, as kubelet does after a re-registration: it removes the CSINode's
    /// entry before it adds the new one, because a nodeID is immutable.
    ///
    /// # Errors
    /// The API server rejected the CSINode.
    pub async fn reregister(&self, node_id: &str) -> Result<()> {
        self.unregister().await?;
        let entry = json!({"name": self.driver_name, "nodeID": node_id});
        self.patch_registration(json!([entry])).await
    }

    /// Removes the driver's CSINode entry, as kubelet does while the driver's node pod restarts.
    ///
    /// # Errors
    /// The API server rejected the CSINode.
    pub async fn unregister(&self) -> Result<()> {
        self.patch_registration(json!([])).await
    }

    async fn patch_registration(&self, drivers: Value) -> Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let patch = Patch::Merge(json!({"spec": {"drivers": drivers}}));
        objects::patch(&csi_nodes, &self.name, &patch).await.map(drop)
    }

    /// Removes the driver from the node: stops its process and removes its CSINode entry.
    ///
    /// # Errors
    /// The process failed, the API server rejected the CSINode, or a real kubelet kept the driver.
    pub async fn uninstall_driver(&self) -> Result<()> {
        self.stop_driver().await?;
        if self.kubelet.is_simulated() {
            self.remove_registration().await?;
        }
        self.wait_for_registration(false).await
    }

    /// Installs the driver again after [`Self::uninstall_driver`], and waits until kubelet has registered it.
    ///
    /// # Errors
    /// The process failed, or kubelet did not register the driver in time.
    pub async fn install_driver(&mut self) -> Result<()> {
        if let Some(driver) = &mut self.driver {
            driver.restart().await?;
        }
        self.kubelet.register_driver();
        self.wait_for_registration(true).await
    }

    /// Removes the CSINode entry, as kubelet does when the driver's registration socket is removed.
    async fn remove_registration(&self) -> Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let mut csi_node = csi_nodes.get(&self.name).await?;
        csi_node
            .spec
            .drivers
            .retain(|driver| driver.name != self.driver_name);
        let replaced = csi_nodes
            .replace(&self.name, &PostParams::default(), &csi_node)
            .await;
        replaced.with_context(|| format!("remove {} from the CSINode of {}", self.driver_name, self.name))?;
        Ok(())
    }

    /// Sets the driver's id of the node.
    pub fn set_node_id(&mut self, node_id: &str) {
        node_id.clone_into(&mut self.node_id);
    }

    /// Makes the containers of a running pod exit with this code.
    ///
    /// # Errors
    /// The kubelet does not run, or is real.
    pub fn exit_containers(&self, pod_uid: &str, code: i32) -> Result<()> {
        let exited = self.kubelet.exit_containers(pod_uid, code);
        exited.with_context(|| format!("on node {}", self.name))
    }

    /// Stops the kubelet without a shutdown: it no longer unmounts, reports or sends heartbeats.
    pub async fn crash(&mut self) -> Result<()> {
        self.kubelet.crash().await
    }

    /// Starts the kubelet again after [`Self::crash`]; its mounts still exist.
    pub fn recover(&mut self) -> Result<()> {
        self.kubelet.recover()
    }

    /// Stops the node's driver and a simulated kubelet, whose objects it deletes. Its pods must be deleted before.
    ///
    /// # Errors
    /// The API server rejected a deletion, the kubelet panicked or kept the driver, or the driver process failed.
    pub async fn deregister(mut self) -> Result<()> {
        let process = match &mut self.kubelet {
            Kubelet::Simulated { process, .. } => process.take(),
            Kubelet::Real(_) => {
                self.stop_driver().await?;
                return self.wait_for_registration(false).await;
            }
        };
        if let Some(process) = process {
            let stopped = process.stop().await;
            stopped.with_context(|| format!("the kubelet of node {}", self.name))?;
        }
        self.stop_driver().await?;
        let delete = DeleteParams::default();
        // The garbage collector may delete the Node's dependents first.
        let leases = Api::<Lease>::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        ignore_not_found(leases.delete(&self.name, &delete).await)?;
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        ignore_not_found(csi_nodes.delete(&self.name, &delete).await)?;
        let nodes = Api::<ApiNode>::all(self.client.clone());
        ignore_not_found(nodes.delete(&self.name, &delete).await)
    }

    async fn stop_driver(&self) -> Result<()> {
        match &self.driver {
            Some(driver) => driver.stop().await,
            None => Ok(()),
        }
    }
}
