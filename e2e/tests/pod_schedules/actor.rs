//! Executes the steps of schedules.

use std::collections::BTreeSet;
use std::fmt::Debug;

use anyhow::{Context, Result};
use csi_e2e::fixture::{OUT_OF_SERVICE, attacher_finalizer};
use csi_e2e::objects;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, VolumeAttachment};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::api::{DeleteParams, Patch};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::schedule::{Schedule, Step, VOLUMES};

/// Name of the driver, which does not run.
pub(crate) const DRIVER: &str = "pods.csi.example";
const NAMESPACE: &str = "default";

/// Users, kubelets and attacher of a cluster.
#[derive(Clone)]
pub(crate) struct Actor {
    client: Client,
}

// === impl Actor ===

impl Actor {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates the shared objects of all schedules.
    pub(crate) async fn register_driver(&self) -> Result<()> {
        let driver = json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": true}});
        self.create(&self.all::<CSIDriver>(), driver).await
    }

    /// Creates nodes, volumes and claims of a schedule.
    pub(crate) async fn prepare(&self, schedule: &Schedule) -> Result<()> {
        for node in schedule.nodes() {
            let annotations = json!({"volumes.kubernetes.io/controller-managed-attach-detach": "true"});
            let object = json!({"metadata": {"name": node, "annotations": annotations}});
            self.create(&self.all::<Node>(), object).await?;
            self.beat(&node, true, 0).await?;
            let drivers = json!([{"name": DRIVER, "nodeID": node}]);
            let object = json!({"metadata": {"name": node}, "spec": {"drivers": drivers}});
            self.create(&self.all::<CSINode>(), object).await?;
        }
        for (volume, access) in schedule.volumes().zip(VOLUMES) {
            if volume != schedule.late_volume() {
                self.create_volume(&volume, access).await?;
            }
            let object = json!({
                "metadata": {"name": volume},
                "spec": {"accessModes": [access], "storageClassName": "", "volumeName": volume,
                    "resources": {"requests": {"storage": "1Gi"}}},
            });
            self.create(&self.namespaced::<PersistentVolumeClaim>(), object)
                .await?;
        }
        Ok(())
    }

    async fn create_volume(&self, volume: &str, access: &str) -> Result<()> {
        let object = json!({
            "metadata": {"name": volume},
            "spec": {"accessModes": [access], "capacity": {"storage": "1Gi"}, "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": DRIVER, "volumeHandle": volume},
                "claimRef": {"namespace": NAMESPACE, "name": volume}},
        });
        self.create(&self.all::<PersistentVolume>(), object).await
    }

    /// Writes the statuses of a schedule's nodes, like kubelets' heartbeats; each has a new number.
    pub(crate) async fn heartbeat(
        &self,
        schedule: &Schedule,
        not_ready: &BTreeSet<String>,
        number: u64,
    ) -> Result<()> {
        for node in schedule.nodes() {
            self.beat(&node, !not_ready.contains(&node), number).await?;
        }
        Ok(())
    }

    async fn beat(&self, node: &str, is_ready: bool, number: u64) -> Result<()> {
        let message = format!("heartbeat {number}");
        let status = if is_ready { "True" } else { "False" };
        let ready = json!({"type": "Ready", "status": status, "reason": "Kubelet", "message": message,
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        self.patch_status::<Node>(node, json!({"status": {"conditions": [ready]}}))
            .await
    }

    /// Executes the steps of a burst.
    pub(crate) async fn act(&self, burst: &[Step]) -> Result<()> {
        for step in burst {
            self.try_act(step).await.with_context(|| step.to_string())?;
        }
        Ok(())
    }

    async fn try_act(&self, step: &Step) -> Result<()> {
        match step {
            Step::CreatePod { pod, node, volumes } => {
                let volumes: Vec<_> = volumes
                    .iter()
                    .map(|name| json!({"name": name, "persistentVolumeClaim": {"claimName": name}}))
                    .collect();
                let object = json!({
                    "metadata": {"name": pod},
                    "spec": {
                        "nodeName": node, "containers": [{"name": "app", "image": "app"}], "volumes": volumes,
                        // Only the schedule deletes pods.
                        "tolerations": [{"operator": "Exists"}],
                    },
                });
                self.create(&self.namespaced::<Pod>(), object).await
            }
            Step::DeletePod(pod) => {
                let now = DeleteParams::default().grace_period(0);
                self.namespaced::<Pod>().delete(pod, &now).await?;
                Ok(())
            }
            Step::FinishPod(pod) => {
                let patch = Patch::Merge(json!({"status": {"phase": "Succeeded"}}));
                let pods = self.namespaced::<Pod>();
                objects::patch_status(&pods, pod, &patch).await.map(drop)
            }
            Step::SetInUse(node, volumes) => {
                self.patch_status::<Node>(node, json!({"status": {"volumesInUse": volumes}}))
                    .await
            }
            Step::SetOutOfService(node, is_out) => {
                // The taints of a node that is not ready stay.
                let mut taint = json!({"key": OUT_OF_SERVICE, "effect": "NoExecute"});
                if *is_out {
                    taint["value"] = "nodeshutdown".into();
                } else {
                    taint["$patch"] = "delete".into();
                }
                let patch = Patch::Strategic(json!({"spec": {"taints": [taint]}}));
                objects::patch(&self.all::<Node>(), node, &patch).await.map(drop)
            }
            Step::SetReady(node, is_ready) => self.beat(node, *is_ready, 0).await,
            Step::CreateVolume(volume) => self.create_volume(volume, VOLUMES[VOLUMES.len() - 1]).await,
            Step::Attach(name) => {
                self.set_finalizers(name, Some([attacher_finalizer(DRIVER)]))
                    .await?;
                let status = json!({"status": {"attached": true, "attachError": null}});
                self.patch_status::<VolumeAttachment>(name, status).await
            }
            Step::FailAttach(name, number) => {
                self.set_finalizers(name, Some([attacher_finalizer(DRIVER)]))
                    .await?;
                let message = format!("attach {number} failed");
                let error = json!({"message": message, "time": "2026-01-01T00:00:00Z"});
                let status = json!({"status": {"attached": false, "attachError": error}});
                self.patch_status::<VolumeAttachment>(name, status).await
            }
            Step::Detach(name) => self.set_finalizers(name, None).await,
            Step::FailDetach(name) => {
                let error = json!({"message": "detach failed", "time": "2026-01-01T00:00:00Z"});
                self.patch_status::<VolumeAttachment>(name, json!({"status": {"detachError": error}}))
                    .await
            }
            Step::LoseAttachment(name) => {
                self.patch_status::<VolumeAttachment>(name, json!({"status": {"attached": false}}))
                    .await
            }
            Step::DeleteAttachment(name) => objects::delete(&self.all::<VolumeAttachment>(), name).await,
        }
    }

    async fn set_finalizers(&self, attachment: &str, finalizers: Option<[String; 1]>) -> Result<()> {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let attachments = self.all::<VolumeAttachment>();
        objects::patch(&attachments, attachment, &patch).await.map(drop)
    }

    fn all<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope>,
    {
        Api::all(self.client.clone())
    }

    fn namespaced<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create<K>(&self, api: &Api<K>, object: Value) -> Result<()>
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let object = serde_json::from_value(object).context("an object must be written as JSON")?;
        objects::create(api, &object).await.map(drop)
    }

    async fn patch_status<K>(&self, name: &str, patch: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
    {
        let patch = Patch::Merge(patch);
        objects::patch_status(&self.all::<K>(), name, &patch)
            .await
            .map(drop)
    }
}
