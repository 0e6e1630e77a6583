//! Nodes of a test environment: the embedded kubelet against the cluster's API server, whatever runs that, and against
//! the socket of the node's driver process.
//!
//! The journal of NodeStage and NodePublish calls of that process says what is mounted on the node.

mod mountless_driver;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use embedded_cluster::apiserver::Clock;
use embedded_cluster::driver_connection::DriverConnection;
use embedded_cluster::kubelet::{KubeletConfig, KubeletProcess, NodeDisk};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node as ApiNode;
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::cluster::ignore_not_found;
use crate::driver::NodeDriver;
use crate::fixture::{NODE_LEASE_NAMESPACE, SCENARIO_LABEL};
use crate::invariant::observations::MountEvent;
use crate::wait::{self, Progress};
use mountless_driver::driver_without_mounts;

/// How long a kubelet may take to register its node and driver.
const REGISTERED: Duration = Duration::from_secs(60);

/// A node of a test environment.
pub struct Node {
    client: Client,
    name: String,
    node_id: String,
    driver_name: String,
    driver: Option<NodeDriver>,
    config: KubeletConfig,
    /// `None` after a crash.
    kubelet: Option<KubeletProcess>,
}

/// How a node is set up.
pub struct NodeSpec<'a> {
    /// Prefix of the scenario.
    pub prefix: &'a str,
    /// Name of the node.
    pub name: &'a str,
    /// Name of the driver.
    pub driver_name: &'a str,
    /// The driver's id of the node.
    pub node_id: &'a str,
    /// The node's driver process; without one nothing is mounted.
    pub driver: Option<NodeDriver>,
}

// === impl Node ===

impl Node {
    /// Starts the node's kubelet and waits until it has registered the node and the driver.
    ///
    /// # Errors
    /// It did not register them in time.
    pub async fn register(client: Client, spec: NodeSpec<'_>) -> Result<Self> {
        let NodeSpec {
            prefix,
            name,
            driver_name,
            node_id,
            driver,
        } = spec;
        let (connection, disk) = match &driver {
            Some(driver) => (
                DriverConnection::new(driver.channel()),
                NodeDisk::on(&driver.kubelet_dir()),
            ),
            None => (
                DriverConnection::new(driver_without_mounts(driver_name, node_id)),
                NodeDisk::in_memory(Path::new("/var/lib/kubelet")),
            ),
        };
        let config = KubeletConfig {
            client: client.clone(),
            clock: Clock::system(),
            name: name.to_owned(),
            labels: BTreeMap::from([(SCENARIO_LABEL.to_owned(), prefix.to_owned())]),
            driver: Some(connection),
            disk,
            injected_bug: None,
        };
        let kubelet = KubeletProcess::start(config.clone());
        let what = format!("the kubelet of {name} to register {driver_name}");
        let csi_nodes = Api::<CSINode>::all(client.clone());
        wait::for_object(&csi_nodes, name, REGISTERED, &what, |csi_node| {
            let drivers = csi_node.map(|csi_node| csi_node.spec.drivers.as_slice());
            let registered =
                drivers.is_some_and(|drivers| drivers.iter().any(|driver| driver.node_id == node_id));
            Progress::of(registered, || format!("its drivers are {drivers:?}"))
        })
        .await?;
        Ok(Self {
            client,
            name: name.to_owned(),
            node_id: node_id.to_owned(),
            driver_name: driver_name.to_owned(),
            driver,
            config,
            kubelet: Some(kubelet),
        })
    }

    /// Name of the Node object.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver's id of the node; never the same as [`Self::name`], so that a mix-up fails.
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    /// The node's driver process.
    pub fn driver(&self) -> Option<&NodeDriver> {
        self.driver.as_ref()
    }

    /// What the node's driver mounted and unmounted so far, in order.
    pub fn mount_events(&self) -> Result<Vec<MountEvent>> {
        self.driver()
            .map_or_else(|| Ok(Vec::new()), |driver| driver.mount_events(self.name()))
    }

    /// Registers the driver under another node id, as kubelet does after a re-registration: it removes the CSINode's
    /// entry before it adds the new one, because a nodeID is immutable.
    ///
    /// # Errors
    /// The API server refused the CSINode.
    pub async fn reregister(&self, node_id: &str) -> Result<()> {
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

    /// From now on the driver's id of the node is this one.
    pub fn set_node_id(&mut self, node_id: &str) {
        node_id.clone_into(&mut self.node_id);
    }

    /// Has the containers of a running pod exit with this code.
    ///
    /// # Errors
    /// The kubelet does not run.
    pub fn exit_containers(&self, pod_uid: &str, code: i32) -> Result<()> {
        let kubelet = self.kubelet.as_ref();
        kubelet
            .with_context(|| format!("the kubelet of {} does not run", self.name))?
            .exit_containers(pod_uid, code);
        Ok(())
    }

    /// Crashes the node: nothing is unmounted or reported any more, and the heartbeat ends.
    pub fn crash(&mut self) {
        self.kubelet = None;
    }

    /// Starts the kubelet again after [`Self::crash`]; its mounts still exist.
    pub fn recover(&mut self) {
        self.kubelet = Some(KubeletProcess::start(self.config.clone()));
    }

    /// Stops the node and deletes its objects. Its pods must be gone by then.
    ///
    /// # Errors
    /// The API server refused to delete an object, the kubelet panicked, or the driver process failed.
    pub async fn deregister(self) -> Result<()> {
        if let Some(kubelet) = self.kubelet {
            let stopped = kubelet.stop().await;
            stopped.with_context(|| format!("the kubelet of node {}", self.name))?;
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
        let nodes = Api::<ApiNode>::all(self.client.clone());
        ignore_not_found(nodes.delete(&self.name, &delete).await)
    }
}
