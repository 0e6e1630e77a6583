//! A cluster with two nodes, and helpers of the tests.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use embedded_cluster::apiserver::Clock;
use embedded_cluster::cluster::{ClusterOptions, EmbeddedCluster, NodeOptions};
use embedded_cluster::driver_connection::DriverConnection;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass, VolumeAttachment};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::attacher;
use crate::driver::{DRIVER, FakeDriver, State};

/// Longer than any timeout of the controllers.
const TIMEOUT: Duration = Duration::from_secs(15 * 60);

pub(crate) struct World {
    pub cluster: EmbeddedCluster,
    pub driver: FakeDriver,
    _sidecars: JoinSet<()>,
}

/// A Kubernetes object.
pub(crate) trait Object:
    Resource<DynamicType = (), Scope: Scope<Self>> + Clone + Debug + DeserializeOwned + Serialize
{
}

impl<K> Object for K where
    K: Resource<DynamicType = (), Scope: Scope<K>> + Clone + Debug + DeserializeOwned + Serialize
{
}

pub(crate) trait Scope<K> {
    fn api(client: Client) -> Api<K>;
}

// === impl Scope ===

impl<K: Resource<DynamicType = (), Scope = Self>> Scope<K> for ClusterResourceScope {
    fn api(client: Client) -> Api<K> {
        Api::all(client)
    }
}

impl<K: Resource<DynamicType = (), Scope = Self>> Scope<K> for NamespaceResourceScope {
    fn api(client: Client) -> Api<K> {
        Api::namespaced(client, "default")
    }
}

// === impl World ===

impl World {
    /// Nodes `a` in zone z1 and `b` in zone z2, a driver, an attacher, and classes `now` and `late`.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut State)) -> Self {
        let driver = FakeDriver::new();
        change(&mut driver.state());
        let mut cluster = EmbeddedCluster::start(ClusterOptions {
            clock: Clock::starting_at("2026-01-01T00:00:00Z".parse().unwrap()),
            ..ClusterOptions::default()
        });
        let mut sidecars = JoinSet::new();
        sidecars.spawn(attacher::run(cluster.client(), driver.clone()));
        sidecars.spawn(cluster.provisioner(DriverConnection::new(driver.services())));
        for (name, zone) in [("a", "z1"), ("b", "z2")] {
            let services = driver.on_node(name, zone).services();
            cluster.add_node(NodeOptions::new(name, Some(DriverConnection::new(services))));
        }
        let world = Self {
            cluster,
            driver,
            _sidecars: sidecars,
        };
        world
            .create::<CSIDriver>(json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}}))
            .await;
        for (name, mode) in [("now", "Immediate"), ("late", "WaitForFirstConsumer")] {
            world
                .create::<StorageClass>(json!({
                    "metadata": {"name": name}, "provisioner": DRIVER, "volumeBindingMode": mode,
                }))
                .await;
        }
        world
    }

    /// A world whose pod `web` runs on node a with its volume `data`.
    pub(crate) async fn with_pod_on_a() -> Self {
        let world = Self::start().await;
        world.run_pod_on_a().await;
        world
    }

    pub(crate) async fn run_pod_on_a(&self) {
        self.claim("data", "now", "ReadWriteOnce").await;
        self.pod("web", Some("a"), &["data"]).await;
        self.until_running("web").await;
    }

    /// An API of cluster-wide objects, or of those in the namespace `default`.
    pub(crate) fn api<K: Object>(&self) -> Api<K> {
        K::Scope::api(self.cluster.client())
    }

    pub(crate) async fn list<K: Object>(&self) -> Vec<K> {
        let objects = self.api().list(&ListParams::default()).await.unwrap();
        objects.items
    }

    pub(crate) async fn create<K: Object>(&self, object: Value) -> K {
        let object = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Applies a merge patch.
    pub(crate) async fn patch<K: Object>(&self, name: &str, patch: Value) {
        let patch = Patch::Merge(patch);
        let patched = self.api::<K>().patch(name, &PatchParams::default(), &patch).await;
        patched.unwrap();
    }

    pub(crate) async fn delete<K: Object>(&self, name: &str) {
        let deleted = self.api::<K>().delete(name, &DeleteParams::default()).await;
        drop(deleted.unwrap());
    }

    pub(crate) async fn claim(&self, name: &str, class: &str, mode: &str) {
        let claim = json!({
            "metadata": {"name": name},
            "spec": {"accessModes": [mode], "storageClassName": class,
                "resources": {"requests": {"storage": "1Gi"}}},
        });
        self.create::<PersistentVolumeClaim>(claim).await;
    }

    pub(crate) async fn pod(&self, name: &str, node: Option<&str>, claims: &[&str]) {
        let volumes: Vec<Value> = claims
            .iter()
            .map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}}))
            .collect();
        self.pod_with_volumes(name, node, json!(volumes)).await;
    }

    /// Creates a pod whose container mounts all its volumes.
    pub(crate) async fn pod_with_volumes(&self, name: &str, node: Option<&str>, volumes: Value) {
        let selector = node.map(|node| json!({"kubernetes.io/hostname": node}));
        let names = volumes
            .as_array()
            .unwrap()
            .iter()
            .map(|volume| volume["name"].as_str().unwrap());
        let mounts: Vec<Value> = names
            .map(|name| json!({"name": name, "mountPath": format!("/{name}")}))
            .collect();
        self.create::<Pod>(json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "app", "image": "pause", "volumeMounts": mounts}],
                "nodeSelector": selector, "volumes": volumes},
        }))
        .await;
    }

    /// Creates a pod whose container mounts its volume `data`, with these fields of its metadata and spec.
    pub(crate) async fn pod_with(&self, name: &str, claim: &str, metadata: Value, spec: Value) {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {
                "containers": [{"name": "app", "image": "pause",
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            },
        });
        for (part, fields) in [("metadata", metadata), ("spec", spec)] {
            let fields = fields.as_object().unwrap().clone();
            pod[part].as_object_mut().unwrap().extend(fields);
        }
        self.create::<Pod>(pod).await;
    }

    /// Waits until `holds`, and returns the duration in simulated time.
    pub(crate) async fn until<F>(&self, what: &str, mut holds: impl FnMut() -> F) -> Duration
    where
        F: Future<Output = bool>,
    {
        let start = Instant::now();
        while !holds().await {
            if start.elapsed() > TIMEOUT {
                panic!("{what}: not reached\n{}", self.dump().await);
            }
            sleep(Duration::from_millis(100)).await;
        }
        start.elapsed()
    }

    pub(crate) async fn until_running(&self, name: &str) -> Duration {
        self.until(&format!("pod {name} running"), || async {
            let pod = self.api::<Pod>().get_opt(name).await.unwrap();
            pod.and_then(|pod| pod.status?.phase).as_deref() == Some("Running")
        })
        .await
    }

    pub(crate) async fn delete_pod(&self, name: &str) {
        self.delete::<Pod>(name).await;
    }

    /// Waits until a pod is gone.
    pub(crate) async fn until_gone(&self, name: &str) {
        self.until(&format!("pod {name} gone"), || async {
            self.api::<Pod>().get_opt(name).await.unwrap().is_none()
        })
        .await;
    }

    /// The phase of a claim that exists.
    pub(crate) async fn claim_phase(&self, name: &str) -> Option<String> {
        let claim = self.api::<PersistentVolumeClaim>().get_opt(name).await.unwrap();
        claim.and_then(|claim| claim.status?.phase)
    }

    pub(crate) async fn until_bound(&self, claim: &str) {
        self.until(&format!("claim {claim} bound"), || async {
            self.claim_phase(claim).await.as_deref() == Some("Bound")
        })
        .await;
    }

    /// Waits until no volume is left, neither in the cluster nor in the driver.
    pub(crate) async fn until_deleted(&self) {
        self.until("volumes deleted", || async {
            self.list::<PersistentVolume>().await.is_empty() && self.driver.state().volumes.is_empty()
        })
        .await;
    }

    /// Waits until exactly these volumes are attached: pairs of the PersistentVolume's claim and node.
    pub(crate) async fn until_attached(&self, expected: &[(&str, &str)]) -> Duration {
        let expected: BTreeSet<(String, String)> = expected
            .iter()
            .map(|(claim, node)| ((*claim).to_owned(), (*node).to_owned()))
            .collect();
        self.until(&format!("attached {expected:?}"), || async {
            self.attached().await == expected
        })
        .await
    }

    pub(crate) async fn attached(&self) -> BTreeSet<(String, String)> {
        let mut attached = BTreeSet::new();
        for attachment in self.list::<VolumeAttachment>().await {
            let volume = attachment.spec.source.persistent_volume_name.unwrap();
            let volume = self.api::<PersistentVolume>().get_opt(&volume).await.unwrap();
            let claim = volume.and_then(|volume| volume.spec?.claim_ref?.name);
            attached.insert((claim.unwrap_or_default(), attachment.spec.node_name));
        }
        attached
    }

    pub(crate) async fn node(&self, name: &str) -> Node {
        self.api::<Node>().get(name).await.unwrap()
    }

    /// Texts of the events with `reason` about an object.
    pub(crate) async fn events(&self, object: &str, reason: &str) -> Vec<String> {
        let events = self.list::<Event>().await;
        events
            .into_iter()
            .filter(|event| event.involved_object.name.as_deref() == Some(object))
            .filter(|event| event.reason.as_deref() == Some(reason))
            .filter_map(|event| event.message)
            .collect()
    }

    pub(crate) async fn until_event(&self, object: &str, reason: &str, text: &str) {
        self.until(&format!("event {reason} of {object} with {text:?}"), || async {
            self.events(object, reason)
                .await
                .iter()
                .any(|message| message.contains(text))
        })
        .await;
    }

    /// Waits until no volume is attached; then none may be mounted or staged, and no call may have violated a rule of CSI.
    pub(crate) async fn until_nothing_is_left(&self) {
        self.until_attached(&[]).await;
        assert!(self.driver.state().mounted.is_empty());
        assert!(self.driver.state().staged.is_empty());
        self.assert_no_violations();
    }

    /// Asserts that no call violated a rule of CSI.
    pub(crate) fn assert_no_violations(&self) {
        assert_eq!(self.driver.state().violations, [""; 0]);
    }

    async fn dump(&self) -> String {
        let mut text = format!(
            "{:#?}\n{:#?}\n",
            self.driver.state(),
            self.cluster.attach_detach().volumes()
        );
        text += &self.list_as_json::<Pod>().await;
        text += &self.list_as_json::<VolumeAttachment>().await;
        text += &self.list_as_json::<PersistentVolumeClaim>().await;
        for event in self.list::<Event>().await {
            text += &format!(
                "{:?} {:?}: {:?}\n",
                event.involved_object.name, event.reason, event.message
            );
        }
        text
    }

    async fn list_as_json<K: Object>(&self) -> String {
        let objects = self.list::<K>().await;
        let lines = objects
            .iter()
            .map(|object| serde_json::to_string(object).unwrap() + "\n");
        lines.collect()
    }
}
