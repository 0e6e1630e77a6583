//! All components of the attach path in one thread: API server, controllers, kubelets, two attachers and the driver.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csi_e2e::fixture::{EBS_DRIVER, OUT_OF_SERVICE};
use csi_mock_driver::array::{self, NodeId, NodeSettings};
use csi_mock_driver::driver::{Driver, Settings};
use csi_mock_driver::journal;
use embedded_cluster::apiserver::Clock;
use embedded_cluster::attach_detach::AttachDetachOptions;
use embedded_cluster::cluster::{ClusterOptions, EmbeddedCluster, NodeOptions};
use embedded_cluster::driver_connection::DriverConnection;
use embedded_cluster::kubelet::NodeDisk;
use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::attacher::{self, Replica};
use crate::attacher_api;
use crate::driver::{DriverProcess, DriverSocket};
use crate::history::{Plan, REPLICAS};
use crate::injected_bug::Bug;
use crate::observer::Observer;
use crate::users::{Claim, Users};

/// The name of a migration driver, so that volumes may be migrated in-tree ones.
pub(crate) const DRIVER: &str = EBS_DRIVER;
pub(crate) const NODES: [&str; 3] = ["a", "b", "c"];
/// Volumes by number: access mode, and whether the PersistentVolume is in-tree.
pub(crate) const VOLUMES: [(&str, bool); 4] = [
    ("ReadWriteOnce", false),
    ("ReadWriteOnce", true),
    ("ReadWriteMany", false),
    ("ReadWriteOnce", false),
];
/// Pods and the numbers of their volumes.
const PODS: [(&str, usize); 5] = [("db", 0), ("old", 1), ("web-0", 2), ("web-1", 2), ("log", 3)];
/// Pods with a provisioned volume, and the binding mode of its StorageClass, which is the name of the class in lower case.
const PODS_WITH_TEMPLATE: [(&str, &str); 2] = [("cache", "immediate"), ("queue", "waitforfirstconsumer")];
const BINDING_MODES: [&str; 2] = ["Immediate", "WaitForFirstConsumer"];

/// The world of one history.
pub(crate) struct World {
    pub observer: Observer,
    pub clock: Clock,
    pub cluster: EmbeddedCluster,
    pub array: Arc<Driver>,
    pub socket: DriverSocket,
    pub replicas: [Replica; 2],
    pub machines: BTreeMap<&'static str, Machine>,
    pub users: Users,
    client: Client,
    /// The external-provisioner; empty while it is down.
    provisioner: JoinSet<()>,
    tasks: JoinSet<()>,
}

/// The machine of a node.
pub(crate) struct Machine {
    pub process: DriverProcess,
    pub id: String,
    generation: u32,
}

// === impl World: start ===

impl World {
    pub(crate) async fn start(seed: u64, plan: Plan) -> Self {
        fastrand::seed(seed);
        let clock = Clock::starting_at("2026-01-01T00:00:00Z".parse().expect("a time"));
        attacher::set_clock(clock.clone());
        let array = mk_array(seed, &clock);
        let (forced_detaches, forced) = mpsc::unbounded_channel();
        let attach_detach = AttachDetachOptions {
            forced_detaches: Some(forced_detaches),
            injected_bug: plan.bug.and_then(Bug::of_kubernetes),
            ..AttachDetachOptions::default()
        };
        let cluster = EmbeddedCluster::start(ClusterOptions {
            clock: clock.clone(),
            seed,
            attach_detach,
            ..ClusterOptions::default()
        });
        let observer = Observer::new(cluster.api_server(), forced, array.clone(), plan.faults);
        let socket = DriverSocket::new(DriverProcess::new("driver", array.clone(), observer.clone()));
        let replicas = REPLICAS.map(|name| {
            let access = attacher_api::access(cluster.api_server(), &observer, name);
            Replica::new(name, access, socket.clone(), observer.clone())
        });
        let client = cluster.api_server().client_of("users");
        let pods = PODS.into_iter().map(|(pod, volume)| (pod, Claim::bound(volume)));
        let with_template = PODS_WITH_TEMPLATE.map(|(pod, class)| (pod, Claim::from_template(pod, class)));
        let pods = pods
            .chain(with_template)
            .map(|(pod, claim)| (pod.to_owned(), claim));
        let users = Users::new(client.clone(), observer.clone(), pods, &NODES, seed ^ 0xA11);
        let mut world = Self {
            observer,
            clock,
            cluster,
            array,
            socket,
            replicas,
            machines: BTreeMap::new(),
            users,
            client,
            provisioner: JoinSet::new(),
            tasks: JoinSet::new(),
        };
        world.create_volumes().await;
        for node in NODES {
            world.switch_on(node, 0);
        }
        for replica in &mut world.replicas {
            replica.start();
        }
        world.start_provisioner();
        world.tasks.spawn(world.users.clone().run());
        world
    }

    async fn create_volumes(&self) {
        let driver = mk(json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}}));
        self.all::<CSIDriver>()
            .create(&PostParams::default(), &driver)
            .await
            .expect("a CSIDriver must be accepted");
        for mode in BINDING_MODES {
            let class = mk(json!({
                "metadata": {"name": mode.to_lowercase()}, "provisioner": DRIVER, "volumeBindingMode": mode,
                "reclaimPolicy": "Delete",
            }));
            self.all::<StorageClass>()
                .create(&PostParams::default(), &class)
                .await
                .expect("a StorageClass must be accepted");
        }
        for (number, (mode, in_tree)) in VOLUMES.into_iter().enumerate() {
            let claim = mk(json!({
                "metadata": {"name": format!("claim-{number}")},
                "spec": {"accessModes": [mode], "storageClassName": "", "volumeName": format!("pv-{number}"),
                    "resources": {"requests": {"storage": "1Gi"}}},
            }));
            self.users
                .claims()
                .create(&PostParams::default(), &claim)
                .await
                .expect("a claim must be accepted");
            let handle = format!("vol-{number}");
            let (kind, source) = if in_tree {
                ("awsElasticBlockStore", json!({"volumeID": handle}))
            } else {
                ("csi", json!({"driver": DRIVER, "volumeHandle": handle}))
            };
            let mut volume = json!({
                "metadata": {"name": format!("pv-{number}")},
                "spec": {"accessModes": [mode], "capacity": {"storage": "1Gi"}, "storageClassName": "",
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": "default", "name": format!("claim-{number}")}},
            });
            volume["spec"][kind] = source;
            self.all::<PersistentVolume>()
                .create(&PostParams::default(), &mk(volume))
                .await
                .expect("a volume must be accepted");
        }
    }
}

// === impl World: objects ===

impl World {
    pub(crate) fn all<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::ClusterResourceScope>,
    {
        Api::all(self.client.clone())
    }
}

// === impl World: provisioner ===

impl World {
    pub(crate) fn start_provisioner(&mut self) {
        self.observer.fault("provisioner", "starts");
        let driver = DriverConnection::new(self.socket.process());
        self.provisioner.spawn(self.cluster.provisioner(driver));
    }

    /// Kills the provisioner, also during a call.
    pub(crate) fn crash_provisioner(&mut self) {
        self.observer.fault("provisioner", "crashes");
        self.provisioner = JoinSet::new();
    }
}

// === impl World: machines ===

impl World {
    /// Starts kubelet and driver of a node on a machine without mounts.
    pub(crate) fn switch_on(&mut self, node: &'static str, generation: u32) {
        let id = format!("{node}-{generation}");
        let driver = self.array.on_node(&id).expect("an in-process node must start");
        let process = DriverProcess::new(&id, driver, self.observer.clone());
        self.observer.machine_on(&id);
        self.observer.fault(node, format_args!("machine {id} is on"));
        self.cluster.add_node(NodeOptions {
            disk: NodeDisk::in_memory(Path::new("/var/lib/kubelet")),
            ..NodeOptions::new(node, Some(DriverConnection::new(process.clone())))
        });
        let machine = Machine {
            process,
            id,
            generation,
        };
        self.machines.insert(node, machine);
    }

    /// Switches a node's machine off. Returns its generation.
    pub(crate) fn switch_off(&mut self, node: &str) -> u32 {
        let machine = &self.machines[node];
        self.observer
            .fault(node, format_args!("machine {} is off", machine.id));
        self.cluster.crash_node(node);
        machine.process.set_down(true);
        self.observer.machine_off(&machine.id);
        machine.generation
    }

    /// Replaces the stopped machine of a node by another one with another node id.
    pub(crate) async fn replace_machine(&mut self, node: &'static str) {
        let generation = self.machines[node].generation + 1;
        let id = format!("{node}-{generation}");
        let registered = self
            .array
            .store
            .change(|array| Ok(array.set_node(&id, NodeSettings::default())))
            .await;
        registered.expect("an in-memory array must accept a node");
        self.switch_on(node, generation);
    }

    /// Deletes a Node, and its CSINode as the garbage collector does. Returns false if the API server did not confirm both.
    pub(crate) async fn delete_node(&mut self, node: &str) -> bool {
        self.observer.fault("admin", format_args!("delete node {node}"));
        self.cluster.remove_node(node);
        let params = DeleteParams::default();
        is_deleted(self.all::<Node>().delete(node, &params).await)
            && is_deleted(self.all::<CSINode>().delete(node, &params).await)
    }

    /// Whether each VolumeAttachment of the node is deleted or being deleted.
    pub(crate) async fn detaches_from(&self, node: &str) -> bool {
        let listed = self.all::<VolumeAttachment>().list(&ListParams::default()).await;
        listed.is_ok_and(|attachments| {
            let mut of_node = attachments
                .iter()
                .filter(|attachment| attachment.spec.node_name == node);
            of_node.all(|attachment| attachment.metadata.deletion_timestamp.is_some())
        })
    }

    /// Adds or removes the out-of-service taint. Returns false if the API server did not confirm it.
    pub(crate) async fn set_out_of_service(&self, node: &str, out: bool) -> bool {
        self.observer
            .fault("admin", format_args!("out-of-service taint of {node}: {out}"));
        let nodes = self.all::<Node>();
        let known = match nodes.get_opt(node).await {
            Ok(Some(known)) => known,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let mut taints = known.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.retain(|taint| taint.key != OUT_OF_SERVICE);
        if out {
            let taint = json!({"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"});
            taints.push(mk(taint));
        }
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": known.metadata.resource_version},
            "spec": {"taints": taints},
        }));
        nodes.patch(node, &PatchParams::default(), &patch).await.is_ok()
    }
}

// === functions ===

/// Whether the response to a deletion means that the object is or will be deleted.
pub(crate) fn is_deleted<T>(response: kube::Result<T>) -> bool {
    match response {
        Ok(_) => true,
        Err(error) => matches!(error, kube::Error::Api(status) if status.code == 404),
    }
}

fn mk_array(seed: u64, clock: &Clock) -> Arc<Driver> {
    let clock = clock.clone();
    let settings = Settings {
        name: DRIVER.to_owned(),
        array: array::Settings {
            nodes: NODES.map(|node| NodeId::from(format!("{node}-0"))).to_vec(),
            ..array::Settings::default()
        },
        initial_volumes: VOLUMES.len() as u64,
        latency: Duration::from_millis(300),
        seed: Some(seed),
        clock: journal::clock::Clock::new(move || clock.now()),
        ..Settings::default()
    };
    Driver::in_memory(settings).expect("an in-process driver must start")
}

fn mk<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("the JSON must match the type")
}
