//! Kubelet's writes of pod statuses. Every write has the pod's UID as a precondition, so it never changes a
//! re-created pod of the same name; a failed write is retried until it succeeds.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::apiserver::Clock;
use crate::pod;

/// Delay after a failed write, doubled each time.
const FIRST_RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_secs(5);

/// Writes the statuses of pods.
#[derive(Clone)]
pub(crate) struct PodStatusManager {
    pub client: Client,
    pub clock: Clock,
}

// === impl PodStatusManager ===

impl PodStatusManager {
    /// Reports that the pod runs.
    pub(crate) async fn report_running(&self, pod: &Pod) {
        let now = Time(self.clock.now());
        let started = pod.status.as_ref().and_then(|status| status.start_time.clone());
        let started = started.unwrap_or_else(|| now.clone());
        // The containers of a pod that the node lifecycle controller marked as not ready did not stop.
        let is_marked = pod::phase(pod) == Some("Running") && pod::ready_status(pod) == Some("False");
        let started_at = if is_marked { &started } else { &now };
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
            "startTime": started,
            "conditions": conditions,
            "containerStatuses": container_statuses(pod, true, &json!({"running": {"startedAt": started_at}})),
        });
        self.patch(pod, status).await;
    }

    /// Reports that the pod's containers exited with this code. Its volumes are still mounted at this time.
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

    /// Deletes the Pod object.
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
                // A re-created pod of the same name, or a conflicting write.
                Err(kube::Error::Api(status)) if status.code == 409 && !self.exists(pod).await => return,
                Err(error) => tracing::debug!(%error, "call failed, trying again"),
            }
            sleep(delay).await;
            delay = (delay * 2).min(MAX_RETRY);
        }
    }

    /// Whether a pod with this UID exists; true also if the read failed.
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
