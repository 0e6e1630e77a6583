//! What kubelet writes about its pods. Every write names the pod's UID, so that a re-created pod of the same name is
//! never touched; a write that fails is repeated until it succeeds.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::mount_spec::MountSpec;
use crate::apiserver::Clock;
use crate::pod;
use crate::volume::{claim_name, driver_and_handle};

/// Delay after a failed write, doubled each time.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_secs(5);

/// Reads and writes about pods.
#[derive(Clone)]
pub(crate) struct PodStatusManager {
    pub client: Client,
    pub clock: Clock,
}

// === impl PodStatusManager ===

impl PodStatusManager {
    /// The CSI volumes of the pod, or `None` if one of them is not bound yet.
    pub(crate) async fn resolve(&self, pod: &Pod) -> Option<Vec<MountSpec>> {
        let mut specs = Vec::new();
        for volume in pod::volumes(pod) {
            if let Some(csi) = &volume.csi {
                let driver = self.csi_driver(&csi.driver).await?;
                specs.extend(MountSpec::from_inline(pod, volume, driver.as_ref()));
            } else if let Some(claim) = claim_name(pod, volume) {
                specs.extend(self.resolve_claim(pod, volume, &claim).await?);
            }
        }
        Some(specs)
    }

    /// A volume that no CSI driver serves is none of ours.
    async fn resolve_claim(&self, pod: &Pod, volume: &Volume, claim: &str) -> Option<Option<MountSpec>> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace);
        let claim = claims.get(claim).await.ok()?;
        if volume.ephemeral.is_some() && !pod::owns(pod, &claim.metadata) {
            return None;
        }
        if claim.status?.phase.as_deref() != Some("Bound") {
            return None;
        }
        let name = claim.spec?.volume_name?;
        let bound = Api::<PersistentVolume>::all(self.client.clone())
            .get(&name)
            .await
            .ok()?;
        let spec = bound.spec.as_ref()?;
        if spec.claim_ref.as_ref()?.uid != claim.metadata.uid {
            return None;
        }
        let Some((driver, _)) = driver_and_handle(spec) else {
            return Some(None);
        };
        let driver = self.csi_driver(&driver).await?;
        let read_only = volume
            .persistent_volume_claim
            .as_ref()
            .is_some_and(|claim| claim.read_only == Some(true));
        Some(MountSpec::from_persistent_volume(
            &bound,
            driver.as_ref(),
            read_only,
        ))
    }

    async fn csi_driver(&self, name: &str) -> Option<Option<CSIDriver>> {
        Api::<CSIDriver>::all(self.client.clone())
            .get_opt(name)
            .await
            .ok()
    }

    /// Reports that the pod runs.
    pub(crate) async fn report_running(&self, pod: &Pod) {
        let now = Time(self.clock.now());
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let conditions = [
            "PodReadyToStartContainers",
            "Initialized",
            "ContainersReady",
            "Ready",
        ]
        .map(condition);
        let status = json!({
            "phase": "Running",
            "startTime": now,
            "conditions": conditions,
            "containerStatuses": container_statuses(pod, true, &json!({"running": {"startedAt": now}})),
        });
        self.patch(pod, status).await;
    }

    /// Reports that the pod's containers ended with this code. Its volumes are still mounted then.
    pub(crate) async fn report_stopped(&self, pod: &Pod, exit_code: i32) {
        let (phase, reason, pod_reason) = match exit_code {
            0 => ("Succeeded", "Completed", "PodCompleted"),
            _ => ("Failed", "Error", "PodFailed"),
        };
        let now = Time(self.clock.now());
        let condition = |kind: &str| json!({"type": kind, "status": "False", "reason": pod_reason, "lastTransitionTime": now});
        let conditions = ["ContainersReady", "Ready"].map(condition);
        let ended = json!({"terminated": {"exitCode": exit_code, "reason": reason, "finishedAt": now}});
        let status = json!({
            "phase": phase,
            "conditions": conditions,
            "containerStatuses": container_statuses(pod, false, &ended),
        });
        self.patch(pod, status).await;
    }

    /// Reports that the pod cannot run on this node.
    pub(crate) async fn report_rejected(&self, pod: &Pod, reason: &str, message: &str) {
        let status =
            json!({"phase": "Failed", "reason": reason, "message": format!("Pod was rejected: {message}")});
        self.patch(pod, status).await;
    }

    async fn patch(&self, pod: &Pod, status: Value) {
        let pods = self.pods(pod);
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.metadata.uid}, "status": status}));
        self.retry(pod, || async {
            pods.patch_status(name, &PatchParams::default(), &patch)
                .await
                .map(drop)
        })
        .await;
    }

    /// Removes the pod's object.
    pub(crate) async fn remove(&self, pod: &Pod) {
        let pods = self.pods(pod);
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let params = DeleteParams::default()
            .grace_period(0)
            .preconditions(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            });
        self.retry(pod, || async { pods.delete(name, &params).await.map(drop) })
            .await;
    }

    /// Repeats a write until it succeeds, or until the pod is gone.
    async fn retry<F>(&self, pod: &Pod, mut write: impl FnMut() -> F)
    where
        F: Future<Output = kube::Result<()>>,
    {
        let mut delay = FIRST_RETRY;
        loop {
            match write().await {
                Ok(()) => return,
                Err(kube::Error::Api(status)) if [404, 422].contains(&status.code) => return,
                // A pod of the same name, or a write that lost a race.
                Err(kube::Error::Api(status)) if status.code == 409 && !self.exists(pod).await => return,
                Err(error) => tracing::debug!(%error, "call failed, trying again"),
            }
            sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY);
        }
    }

    /// Whether the pod exists with this UID, or may exist.
    async fn exists(&self, pod: &Pod) -> bool {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        match self.pods(pod).get_opt(name).await {
            Ok(found) => found.is_some_and(|found| found.metadata.uid == pod.metadata.uid),
            Err(_) => true,
        }
    }

    fn pods(&self, pod: &Pod) -> Api<Pod> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        Api::namespaced(self.client.clone(), namespace)
    }
}

// === functions ===

fn container_statuses(pod: &Pod, ready: bool, state: &Value) -> Vec<Value> {
    pod.spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .map(|container| {
            json!({
                "name": container.name,
                "image": container.image,
                "imageID": "",
                "ready": ready,
                "started": ready,
                "restartCount": 0,
                "state": state,
            })
        })
        .collect()
}
