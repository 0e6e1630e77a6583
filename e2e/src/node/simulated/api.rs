//! What a kubelet reads from and writes to the API server.
//!
//! Invariants: every write names the object's UID where the API allows it, so that a re-created pod of the
//! same name is never touched; a call that fails is repeated with a growing pause until it succeeds or the
//! kubelet is stopped, as kubelet does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;

use super::super::event_log::{NodeEvent, NodeEventLog};
use super::volume_manager::{PodKey, UniqueName, VolumeKey};
use crate::cluster::ignore_not_found;
use crate::fixture::{NODE_LEASE_NAMESPACE, mk_ready_condition, unique_volume_name, volume_source};

/// First pause after a failed call, doubled each time.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// One node's view of the API server.
#[derive(Clone)]
pub(super) struct NodeApi {
    client: Client,
    node: String,
    event_log: NodeEventLog,
}

// === impl NodeApi ===

impl NodeApi {
    pub(super) fn new(client: Client, node: String, event_log: NodeEventLog) -> Self {
        Self {
            client,
            node,
            event_log,
        }
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn node(&self) -> &str {
        &self.node
    }

    /// The CSI volumes behind the pod's claims. A pod that is gone has none.
    pub(super) async fn volumes_of(&self, pod: &PodKey) -> Vec<VolumeKey> {
        retry_until_ok("resolve the pod's volumes", || self.try_volumes_of(pod)).await
    }

    async fn try_volumes_of(&self, key: &PodKey) -> Result<Vec<VolumeKey>> {
        let pods = Api::<Pod>::namespaced(self.client(), &key.namespace);
        let Some(pod) = pods.get_opt(&key.name).await? else {
            return Ok(Vec::new());
        };
        let claims = Api::<PersistentVolumeClaim>::namespaced(self.client(), &key.namespace);
        let mut found = Vec::new();
        for volume in pod.spec.and_then(|spec| spec.volumes).unwrap_or_default() {
            let Some(claim) = volume.persistent_volume_claim else {
                continue;
            };
            let claim = claims.get(&claim.claim_name).await?;
            let name = claim
                .spec
                .and_then(|spec| spec.volume_name)
                .context("the claim is not bound")?;
            let pv = Api::<PersistentVolume>::all(self.client()).get(&name).await?;
            let spec = pv.spec.context("a PersistentVolume must have a spec")?;
            let access_modes = spec.access_modes.clone().unwrap_or_default();
            let block = spec.volume_mode.as_deref() == Some("Block");
            let source = volume_source(spec).context("the volume is neither a CSI nor a migrated one")?;
            found.push(VolumeKey {
                unique_name: unique_volume_name(&source.driver, &source.handle),
                driver: source.driver,
                handle: source.handle,
                attributes: source.attributes,
                access_modes,
                block,
            });
        }
        Ok(found)
    }

    /// Stores `volumesInUse` and answers with the node as it then was.
    pub(super) async fn store_in_use(&self, names: &BTreeSet<UniqueName>) -> Node {
        let nodes = Api::<Node>::all(self.client());
        let patch = Patch::Strategic(json!({"status": {"volumesInUse": names}}));
        let node = retry_until_ok("store volumesInUse", || async {
            Ok(nodes
                .patch_status(&self.node, &PatchParams::default(), &patch)
                .await?)
        })
        .await;
        let handles = names.iter().map(|name| handle_of(name).to_owned()).collect();
        self.event_log.record(&self.node, NodeEvent::InUse { handles });
        node
    }

    /// The publish context of the volume, once its VolumeAttachment says that it is attached here.
    ///
    /// # Errors
    /// The attachment is missing or not attached, or belongs to another node.
    pub(super) async fn publish_context(&self, volume: &VolumeKey) -> Result<BTreeMap<String, String>> {
        if !self.attach_required(&volume.driver).await? {
            return Ok(BTreeMap::new());
        }
        let name = attachment_name(&volume.handle, &volume.driver, &self.node);
        let attachment = Api::<VolumeAttachment>::all(self.client()).get(&name).await?;
        ensure!(
            attachment.spec.node_name == self.node,
            "attachment {name} is for another node"
        );
        let status = attachment.status.unwrap_or_default();
        ensure!(status.attached, "attachment {name} is not attached");
        Ok(status.attachment_metadata.unwrap_or_default())
    }

    async fn attach_required(&self, driver: &str) -> Result<bool> {
        let driver = Api::<CSIDriver>::all(self.client()).get_opt(driver).await?;
        Ok(driver.and_then(|driver| driver.spec.attach_required) != Some(false))
    }

    /// Patches the pod's status to Running.
    pub(super) async fn report_running(&self, pod: &PodKey) {
        let now = Timestamp::now().to_string();
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        self.patch_pod_status(
            pod,
            json!({
                "phase": "Running",
                "startTime": now,
                "conditions": [condition("Initialized"), condition("ContainersReady"), condition("Ready")],
                "containerStatuses": [container_status(true, json!({"running": {"startedAt": now}}))],
            }),
        )
        .await;
        self.event_log.record(
            &self.node,
            NodeEvent::Started {
                pod: pod.name.clone(),
            },
        );
    }

    /// Patches the pod's status to Succeeded. Its volumes are still mounted then, which is why the
    /// attach/detach controller must wait for `volumesInUse` and not for the pod.
    pub(super) async fn report_stopped(&self, pod: &PodKey) {
        let now = Timestamp::now().to_string();
        let condition = |kind: &str| json!({"type": kind, "status": "False", "reason": "PodCompleted", "lastTransitionTime": now});
        let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed", "finishedAt": now}});
        self.patch_pod_status(
            pod,
            json!({
                "phase": "Succeeded",
                "conditions": [condition("ContainersReady"), condition("Ready")],
                "containerStatuses": [container_status(false, ended)],
            }),
        )
        .await;
        self.event_log.record(
            &self.node,
            NodeEvent::Stopped {
                pod: pod.name.clone(),
            },
        );
    }

    async fn patch_pod_status(&self, pod: &PodKey, status: serde_json::Value) {
        let pods = Api::<Pod>::namespaced(self.client(), &pod.namespace);
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
        retry_until_ok("patch the pod's status", || async {
            ignore_replaced(
                pods.patch_status(&pod.name, &PatchParams::default(), &patch)
                    .await,
            )
        })
        .await;
    }

    /// Removes the pod's object for good.
    pub(super) async fn remove_pod(&self, pod: &PodKey) {
        let pods = Api::<Pod>::namespaced(self.client(), &pod.namespace);
        let params = DeleteParams::default()
            .grace_period(0)
            .preconditions(Preconditions {
                uid: Some(pod.uid.clone()),
                resource_version: None,
            });
        retry_until_ok("remove the pod", || async {
            ignore_replaced(pods.delete(&pod.name, &params).await)
        })
        .await;
        self.event_log.record(
            &self.node,
            NodeEvent::Finished {
                pod: pod.name.clone(),
            },
        );
    }

    /// Renews the heartbeat lease and the Ready condition once; a failure is left to the next beat.
    ///
    /// The condition is not for the node's health only, for which the lease would do: the attach/detach
    /// controller takes `volumesInUse` into account when the Node changes and at no other time, so a volume
    /// it learns of after the last change would count as in use until the next one.
    pub(super) async fn renew_heartbeat(&self, ready_since: Timestamp) {
        let now = Timestamp::now();
        let leases = Api::<Lease>::namespaced(self.client(), NODE_LEASE_NAMESPACE);
        let lease = Patch::Merge(json!({"spec": {"renewTime": format!("{now:.6}")}}));
        if let Err(error) = leases.patch(&self.node, &PatchParams::default(), &lease).await {
            tracing::warn!(node = self.node, %error, "node lease was not renewed");
        }
        let nodes = Api::<Node>::all(self.client());
        let status =
            Patch::Strategic(json!({"status": {"conditions": [mk_ready_condition(ready_since, now)]}}));
        if let Err(error) = nodes
            .patch_status(&self.node, &PatchParams::default(), &status)
            .await
        {
            tracing::warn!(node = self.node, %error, "node status was not renewed");
        }
    }
}

// === functions ===

/// The name the CSI plugin gives the VolumeAttachment of a volume on a node.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    let digest = ring::digest::digest(
        &ring::digest::SHA256,
        format!("{handle}{driver}{node}").as_bytes(),
    );
    let mut name = "csi-".to_owned();
    for byte in digest.as_ref() {
        write!(name, "{byte:02x}").expect("writing to a String must succeed");
    }
    name
}

fn handle_of(unique_name: &str) -> &str {
    unique_name
        .rsplit_once('^')
        .map_or(unique_name, |(_, handle)| handle)
}

fn container_status(ready: bool, state: serde_json::Value) -> serde_json::Value {
    json!({
        "name": "app",
        "image": "pause",
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": 0,
        "state": state,
    })
}

/// A pod that is gone, or replaced by another one of the same name, needs no write.
fn ignore_replaced<T>(result: kube::Result<T>) -> Result<()> {
    match result {
        Err(kube::Error::Api(status)) if [409, 422].contains(&status.code) => Ok(()),
        result => ignore_not_found(result),
    }
}

/// Repeats `attempt` with a growing pause until it succeeds.
pub(super) async fn retry_until_ok<T, F>(what: &str, mut attempt: impl FnMut() -> F) -> T
where
    F: Future<Output = Result<T>>,
{
    let mut pause = FIRST_PAUSE;
    loop {
        match attempt().await {
            Ok(value) => return value,
            Err(error) => tracing::warn!(what, error = %format!("{error:#}"), "call failed, trying again"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachment_is_named_as_the_csi_plugin_names_it() {
        // sha256("hdn"), by sha256sum.
        assert_eq!(
            attachment_name("h", "d", "n"),
            "csi-9072ed11cc1acb5fa433a877ff339b6311d013f33bddd1d0092711a8ace5b16d"
        );
    }

    #[test]
    fn handle_is_what_follows_the_driver() {
        assert_eq!(handle_of("kubernetes.io/csi/a.b^vol-1"), "vol-1");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failing_call_is_repeated_until_it_succeeds() {
        let mut left = 3;
        let started = tokio::time::Instant::now();
        retry_until_ok("try", || {
            left -= 1;
            let done = left == 0;
            async move {
                ensure!(done, "not yet");
                Ok(())
            }
        })
        .await;
        assert_eq!(started.elapsed(), FIRST_PAUSE * 3, "one pause and a doubled one");
    }
}
