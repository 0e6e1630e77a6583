//! Kubelet's Node, Lease and CSINode: registration and heartbeat.

use std::collections::BTreeMap;

use csi_proto::v1;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus};
use k8s_openapi::api::storage::v1::{CSINode, CSINodeDriver, CSINodeSpec, VolumeNodeResources};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use super::csi_mounter::CSI_TIMEOUT;
use crate::apiserver::Clock;
use crate::driver_connection::DriverConnection;
use crate::node::{self, CONTROLLER_MANAGED_ATTACH, NODE_LEASE_NAMESPACE};

/// Annotation of a CSINode: the in-tree plugins that are migrated to CSI on this node.
const MIGRATED_PLUGINS: (&str, &str) = (
    "storage.alpha.kubernetes.io/migrated-plugins",
    "kubernetes.io/aws-ebs,kubernetes.io/azure-disk,kubernetes.io/azure-file,kubernetes.io/cinder,\
     kubernetes.io/gce-pd,kubernetes.io/portworx-volume,kubernetes.io/vsphere-volume",
);
/// `leaseDurationSeconds` of a node's lease.
const LEASE_DURATION_SECONDS: i32 = 40;

/// The API objects of one node.
#[derive(Clone)]
pub(crate) struct NodeRegistration {
    pub client: Client,
    pub clock: Clock,
    pub name: String,
    pub labels: BTreeMap<String, String>,
}

// === impl NodeRegistration ===

impl NodeRegistration {
    /// Creates Node and Lease, or adopts those of a previous kubelet.
    ///
    /// # Errors
    /// The API server rejected an object; kubelet retries.
    pub(crate) async fn register(&self) -> kube::Result<Node> {
        let nodes = Api::<Node>::all(self.client.clone());
        let now = self.clock.now();
        let node = match nodes.create(&PostParams::default(), &self.new_node(now)).await {
            Ok(node) => node,
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let patch = json!({"metadata": {
                    "labels": self.all_labels(),
                    "annotations": {CONTROLLER_MANAGED_ATTACH: "true"},
                }});
                nodes
                    .patch(&self.name, &PatchParams::default(), &Patch::Strategic(patch))
                    .await?
            }
            Err(error) => return Err(error),
        };
        self.renew_lease().await?;
        self.report_status(&node).await?;
        Ok(node)
    }

    /// Writes the driver's NodeGetInfo response into CSINode and the node's labels.
    ///
    /// # Errors
    /// The driver's call failed, or the API server rejected an object; kubelet retries.
    pub(crate) async fn register_driver(
        &self,
        node: &Node,
        driver: &DriverConnection,
    ) -> anyhow::Result<String> {
        let driver = driver.with_timeout(CSI_TIMEOUT);
        let name = driver.name().await?;
        let info = driver
            .node()
            .node_get_info(v1::NodeGetInfoRequest {})
            .await?
            .into_inner();
        let segments = info
            .accessible_topology
            .map(|topology| topology.segments)
            .unwrap_or_default();
        let segments: BTreeMap<_, _> = segments.into_iter().collect();
        if !segments.is_empty() {
            let patch = json!({"metadata": {"labels": segments}});
            Api::<Node>::all(self.client.clone())
                .patch(&self.name, &PatchParams::default(), &Patch::Strategic(patch))
                .await?;
        }
        let entry = CSINodeDriver {
            name: name.clone(),
            node_id: info.node_id,
            topology_keys: Some(segments.into_keys().collect()),
            // 0 means no limit, not zero volumes.
            allocatable: (info.max_volumes_per_node > 0).then(|| VolumeNodeResources {
                count: i32::try_from(info.max_volumes_per_node).ok(),
            }),
        };
        self.store_csi_node(node, entry).await?;
        Ok(name)
    }

    async fn store_csi_node(&self, node: &Node, entry: CSINodeDriver) -> kube::Result<()> {
        let csi_nodes = Api::<CSINode>::all(self.client.clone());
        let Some(mut known) = csi_nodes.get_opt(&self.name).await? else {
            let (key, plugins) = MIGRATED_PLUGINS;
            let csi_node = CSINode {
                metadata: ObjectMeta {
                    name: Some(self.name.clone()),
                    owner_references: Some(vec![owner(node)]),
                    annotations: Some(BTreeMap::from([(key.to_owned(), plugins.to_owned())])),
                    ..ObjectMeta::default()
                },
                spec: CSINodeSpec { drivers: vec![entry] },
            };
            return csi_nodes
                .create(&PostParams::default(), &csi_node)
                .await
                .map(drop);
        };
        if known.spec.drivers.contains(&entry) {
            return Ok(());
        }
        // The entry of a driver is immutable: kubelet removes the old one first.
        let others = known
            .spec
            .drivers
            .iter()
            .filter(|driver| driver.name != entry.name);
        let others: Vec<_> = others.cloned().collect();
        if others.len() < known.spec.drivers.len() {
            known.spec.drivers.clone_from(&others);
            known = csi_nodes
                .replace(&self.name, &PostParams::default(), &known)
                .await?;
        }
        known.spec.drivers = others;
        known.spec.drivers.push(entry);
        csi_nodes
            .replace(&self.name, &PostParams::default(), &known)
            .await
            .map(drop)
    }

    /// Renews the node's lease. Creates it if it does not exist and the node does, as upstream's `ensureLease`.
    ///
    /// # Errors
    /// The API server rejected a request; the next heartbeat retries.
    pub(crate) async fn renew_lease(&self) -> kube::Result<()> {
        let now = self.clock.now();
        let leases = Api::<Lease>::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        let lease = Patch::Merge(json!({"spec": {"renewTime": MicroTime(now)}}));
        match leases.patch(&self.name, &PatchParams::default(), &lease).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            renewed => return renewed.map(drop),
        }
        let nodes = Api::<Node>::all(self.client.clone());
        if let Some(node) = nodes.get_opt(&self.name).await? {
            leases
                .create(&PostParams::default(), &self.new_lease(&node, now))
                .await?;
        }
        Ok(())
    }

    /// Writes the conditions of the Node, whose last known state is `node`.
    ///
    /// # Errors
    /// The API server rejected the write; the next heartbeat retries.
    pub(crate) async fn report_status(&self, node: &Node) -> kube::Result<()> {
        let conditions = conditions(node, self.clock.now());
        let status = Patch::Strategic(json!({"status": {"conditions": conditions}}));
        Api::<Node>::all(self.client.clone())
            .patch_status(&self.name, &PatchParams::default(), &status)
            .await
            .map(drop)
    }

    fn all_labels(&self) -> BTreeMap<String, String> {
        let mut labels = self.labels.clone();
        for (key, value) in [
            ("kubernetes.io/hostname", self.name.as_str()),
            ("kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", "amd64"),
        ] {
            labels.insert(key.to_owned(), value.to_owned());
        }
        labels
    }

    fn new_node(&self, now: Timestamp) -> Node {
        let quantity = |text: &str| Quantity(text.to_owned());
        let resources = BTreeMap::from([
            ("cpu".to_owned(), quantity("64")),
            ("memory".to_owned(), quantity("256Gi")),
            ("pods".to_owned(), quantity("1000")),
        ]);
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some(self.all_labels()),
                annotations: Some(BTreeMap::from([(
                    CONTROLLER_MANAGED_ATTACH.to_owned(),
                    "true".to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            status: Some(NodeStatus {
                allocatable: Some(resources.clone()),
                capacity: Some(resources),
                conditions: Some(conditions(&Node::default(), now).into()),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    fn new_lease(&self, node: &Node, now: Timestamp) -> Lease {
        Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(NODE_LEASE_NAMESPACE.to_owned()),
                owner_references: Some(vec![owner(node)]),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.name.clone()),
                lease_duration_seconds: Some(LEASE_DURATION_SECONDS),
                renew_time: Some(MicroTime(now)),
                ..LeaseSpec::default()
            }),
        }
    }
}

// === functions ===

fn owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

/// The conditions to report. One whose status is as in `node` keeps its transition time.
fn conditions(node: &Node, now: Timestamp) -> [NodeCondition; 4] {
    [
        (
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available",
        ),
        (
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure",
        ),
        (
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available",
        ),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ]
    .map(|(kind, status, reason, message)| NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(Time(now)),
        last_transition_time: node::condition(node, kind)
            .filter(|found| found.status == status)
            .and_then(|found| found.last_transition_time.clone())
            .or(Some(Time(now))),
    })
}
