//! Kubelet's Node and Lease: registration and heartbeat.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeAddress, NodeCondition, NodeStatus, NodeSystemInfo};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, OwnerReference, Time};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

use crate::apiserver::{Clock, KUBERNETES_VERSION};
use crate::node::{self, CONTROLLER_MANAGED_ATTACH, NODE_LEASE_NAMESPACE};

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
    /// Creates Node, CSINode and Lease, or adopts those of a previous kubelet.
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
        // Before it reports that the node is ready, as upstream.
        self.initialize_csi_node(&node).await?;
        self.renew_lease().await?;
        self.report_status(&node).await?;
        Ok(node)
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
                addresses: Some(vec![
                    address("InternalIP", "127.0.0.1"),
                    address("Hostname", &self.name),
                ]),
                node_info: Some(NodeSystemInfo {
                    architecture: "amd64".to_owned(),
                    operating_system: "linux".to_owned(),
                    os_image: "simulated".to_owned(),
                    container_runtime_version: "simulated://0".to_owned(),
                    kubelet_version: KUBERNETES_VERSION.to_owned(),
                    ..NodeSystemInfo::default()
                }),
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

pub(super) fn owner(node: &Node) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress {
        type_: kind.to_owned(),
        address: address.to_owned(),
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
