//! A small kube-scheduler: node selector, taints, volume topology, attach limits, storage capacity and
//! WaitForFirstConsumer.
//!
//! Pods are scheduled one at a time, oldest first, on the node with the fewest pods.

mod filter;
mod snapshot;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use filter::{PodVolumeClaims, Snapshot, can_get_volume, reject, volume_for_node};

use crate::apiserver::Clock;
use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::{Change, Key, key_of};
use crate::informers::Informers;
use crate::persistent_volume::{ANN_BOUND_BY_CONTROLLER, ANN_SELECTED_NODE};
use crate::pod;

/// Name in the pods' `schedulerName`.
const SCHEDULER_NAME: &str = "default-scheduler";
/// Delay before an unschedulable pod is retried without a relevant event.
const UNSCHEDULABLE_RETRY: Duration = Duration::from_secs(5);
/// Delay before a pod whose volumes are being bound is retried.
const BINDING_RETRY: Duration = Duration::from_millis(200);

/// The scheduler.
pub(crate) struct Scheduler {
    pub client: Client,
    pub informers: Informers,
    pub recorder: EventRecorder,
    pub clock: Clock,
}

/// The result of a scheduling attempt.
enum Scheduled {
    Bound(String),
    /// The node is chosen; its volumes are being bound.
    WaitsForVolumes(String),
    Unschedulable(String),
}

/// The result of a pod's last scheduling attempt.
struct Attempt {
    retry_at: Instant,
    message: String,
    /// The chosen node while the volumes are being bound.
    node: Option<String>,
}

// === impl Scheduler ===

impl Scheduler {
    /// Runs until the future is dropped. The call subscribes, so that the scheduler misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let mut pods = self.informers.pods.subscribe();
        let mut nodes = self.informers.nodes.subscribe();
        let mut claims = self.informers.claims.subscribe();
        let mut volumes = self.informers.volumes.subscribe();
        let mut csi_nodes = self.informers.csi_nodes.subscribe();
        let mut attachments = self.informers.attachments.subscribe();
        let mut capacities = self.informers.capacities.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let mut pending: BTreeMap<(Time, Key), Arc<Pod>> = BTreeMap::new();
            let mut attempts: BTreeMap<Key, Attempt> = BTreeMap::new();
            let mut assumed: BTreeMap<String, String> = BTreeMap::new();
            loop {
                self.schedule_pending(&pending, &mut attempts, &mut assumed).await;
                let due = attempts.values().map(|attempt| attempt.retry_at).min();
                let helped = tokio::select! {
                    biased;
                    Some(change) = pods.recv() => pod_changed(&mut pending, &mut attempts, &mut assumed, &change),
                    Some(change) = nodes.recv() => node_helps(&change),
                    Some(_) = claims.recv() => true,
                    Some(_) = volumes.recv() => true,
                    Some(_) = csi_nodes.recv() => true,
                    Some(change) = attachments.recv() => matches!(change, Change::Deleted(_)),
                    Some(_) = capacities.recv() => true,
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => false,
                };
                if helped {
                    // The change may make any of these pods schedulable.
                    let now = Instant::now();
                    attempts.values_mut().for_each(|attempt| attempt.retry_at = now);
                }
            }
        }
    }

    async fn schedule_pending(
        &self,
        pending: &BTreeMap<(Time, Key), Arc<Pod>>,
        attempts: &mut BTreeMap<Key, Attempt>,
        assumed: &mut BTreeMap<String, String>,
    ) {
        let now = Instant::now();
        let due: Vec<(Key, Arc<Pod>)> = pending
            .iter()
            .filter(|((_, key), _)| attempts.get(key).is_none_or(|attempt| attempt.retry_at <= now))
            .filter(|(_, pod)| !assumed.contains_key(pod::uid(pod)))
            .map(|((_, key), pod)| (key.clone(), pod.clone()))
            .collect();
        if due.is_empty() {
            return;
        }
        let mut snapshot = Snapshot::of(&self.informers, assumed);
        for (key, pod) in due {
            let chosen = attempts.get(&key).and_then(|attempt| attempt.node.clone());
            let (message, delay, node) = match self.schedule(&pod, chosen.as_deref(), &snapshot).await {
                Ok(Scheduled::Bound(node)) => {
                    assumed.insert(pod::uid(&pod).to_owned(), node.clone());
                    snapshot.assumed.insert(pod::uid(&pod).to_owned(), node);
                    attempts.remove(&key);
                    continue;
                }
                Ok(Scheduled::WaitsForVolumes(node)) => {
                    snapshot.assumed.insert(pod::uid(&pod).to_owned(), node.clone());
                    (String::new(), BINDING_RETRY, Some(node))
                }
                Ok(Scheduled::Unschedulable(message)) => {
                    let known = attempts.get(&key).map(|attempt| attempt.message.as_str());
                    if known != Some(&message) {
                        self.report_unschedulable(&pod, &message).await;
                    }
                    (message, UNSCHEDULABLE_RETRY, None)
                }
                Err(error) => {
                    tracing::debug!(pod = ?key, %error, "pod was not scheduled");
                    (String::new(), BINDING_RETRY, chosen)
                }
            };
            let retry_at = Instant::now() + delay;
            attempts.insert(
                key,
                Attempt {
                    retry_at,
                    message,
                    node,
                },
            );
        }
    }

    async fn schedule(
        &self,
        pod: &Pod,
        chosen: Option<&str>,
        snapshot: &Snapshot,
    ) -> kube::Result<Scheduled> {
        let nodes = snapshot.nodes.len();
        let claims = match PodVolumeClaims::of(pod, snapshot) {
            Ok(claims) => claims,
            Err(reason) => {
                let message = format!("0/{nodes} nodes are available: {reason}. not found");
                return Ok(Scheduled::Unschedulable(message));
            }
        };
        let mut fitting = Vec::new();
        let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
        for node in &snapshot.nodes {
            match reject(pod, &claims, node, snapshot) {
                None => fitting.push(node),
                Some(reason) => *reasons.entry(reason).or_default() += 1,
            }
        }
        let Some(node) = choose(pod, &claims, chosen, &fitting, snapshot) else {
            return Ok(Scheduled::Unschedulable(fit_error(nodes, &reasons)));
        };
        let name = node.metadata.name.clone().unwrap_or_default();
        if !claims.unbound_claims_delay_binding.is_empty() {
            for claim in &claims.unbound_claims_delay_binding {
                self.bind_claim(claim, node, snapshot).await?;
            }
            return Ok(Scheduled::WaitsForVolumes(name));
        }
        self.bind(pod, &name).await?;
        Ok(Scheduled::Bound(name))
    }

    /// Binds the claim to an existing volume, or requests provisioning on the node.
    async fn bind_claim(
        &self,
        claim: &PersistentVolumeClaim,
        node: &Node,
        snapshot: &Snapshot,
    ) -> kube::Result<()> {
        let node_name = node.metadata.name.as_deref().unwrap_or_default();
        if let Some(volume) = volume_for_node(claim, node, snapshot) {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            let patch = json!({
                "metadata": {
                    "resourceVersion": volume.metadata.resource_version,
                    "annotations": {ANN_BOUND_BY_CONTROLLER: "yes"},
                },
                "spec": {"claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim",
                    "namespace": claim.metadata.namespace, "name": claim.metadata.name,
                    "uid": claim.metadata.uid,
                }},
            });
            let volumes = Api::<PersistentVolume>::all(self.client.clone());
            return volumes
                .patch(name, &PatchParams::default(), &Patch::Merge(patch))
                .await
                .map(drop);
        }
        if selected_node(claim).is_some() {
            return Ok(());
        }
        let patch = json!({"metadata": {
            "resourceVersion": claim.metadata.resource_version,
            "annotations": {ANN_SELECTED_NODE: node_name},
        }});
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        Api::<PersistentVolumeClaim>::namespaced(self.client.clone(), namespace)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .map(drop)
    }

    async fn bind(&self, pod: &Pod, node: &str) -> kube::Result<()> {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let binding = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let bound: kube::Result<serde_json::Value> = pods
            .create_subresource("binding", name, &PostParams::default(), &binding)
            .await;
        bound?;
        let message = format!("Successfully assigned {namespace}/{name} to {node}");
        self.recorder.event(pod, EventType::Normal, "Scheduled", &message);
        Ok(())
    }

    async fn report_unschedulable(&self, pod: &Pod, message: &str) {
        self.recorder
            .event(pod, EventType::Warning, "FailedScheduling", message);
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": Time(self.clock.now()),
        });
        let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        if let Err(error) = pods
            .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
            .await
        {
            tracing::debug!(pod = name, %error, "condition PodScheduled was not written");
        }
    }
}

// === functions ===

/// The selected node of the claims, else the node chosen before, else the node with the fewest pods.
fn choose<'a>(
    pod: &Pod,
    claims: &PodVolumeClaims,
    chosen: Option<&str>,
    fitting: &[&'a Arc<Node>],
    snapshot: &Snapshot,
) -> Option<&'a Arc<Node>> {
    let unbound = &claims.unbound_claims_delay_binding;
    let promised = unbound.iter().find_map(|claim| selected_node(claim)).or(chosen);
    let mut candidates: Vec<&Arc<Node>> = fitting.to_vec();
    let fits = |name| {
        fitting
            .iter()
            .any(|node| node.metadata.name.as_deref() == Some(name))
    };
    if let Some(promised) = promised.filter(|name| !unbound.is_empty() || fits(*name)) {
        candidates.retain(|node| node.metadata.name.as_deref() == Some(promised));
    }
    candidates.retain(|node| {
        let mut unbound = unbound.iter();
        unbound.all(|claim| can_get_volume(claim, node, snapshot))
    });
    candidates.into_iter().min_by_key(|node| {
        let name = node.metadata.name.as_deref();
        let on_node = |other: &&Arc<Pod>| {
            let assumed = snapshot.assumed.get(pod::uid(other)).map(String::as_str);
            pod::uid(other) != pod::uid(pod)
                && !pod::is_finished(other)
                && pod::node_name(other).or(assumed) == name
        };
        snapshot.pods.iter().filter(on_node).count()
    })
}

fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(ANN_SELECTED_NODE).map(String::as_str)
}

fn fit_error(nodes: usize, reasons: &BTreeMap<String, usize>) -> String {
    if nodes == 0 {
        return "no nodes available to schedule pods".to_owned();
    }
    let mut reasons: Vec<String> = reasons
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    reasons.sort();
    format!("0/{nodes} nodes are available: {}.", reasons.join(", "))
}

fn pod_changed(
    pending: &mut BTreeMap<(Time, Key), Arc<Pod>>,
    attempts: &mut BTreeMap<Key, Attempt>,
    assumed: &mut BTreeMap<String, String>,
    change: &Change<Pod>,
) -> bool {
    let is_one_deleted = change
        .replaced()
        .is_some_and(|old| pod_changed(pending, attempts, assumed, &Change::Deleted(old.clone())));
    let (pod, present) = match change {
        Change::Applied { new, .. } => (new, true),
        Change::Deleted(old) => (old, false),
    };
    let key = key_of(&**pod);
    let created = pod
        .metadata
        .creation_timestamp
        .clone()
        .unwrap_or(Time(jiff::Timestamp::UNIX_EPOCH));
    let ours = pod.spec.as_ref().is_none_or(|spec| {
        let name = spec.scheduler_name.as_deref();
        name.is_none_or(|name| name == SCHEDULER_NAME)
            && spec.scheduling_gates.iter().flatten().next().is_none()
    });
    let waits =
        present && ours && pod::node_name(pod).is_none() && !pod::is_deleting(pod) && !pod::is_finished(pod);
    if waits {
        pending.insert((created, key), pod.clone());
        return is_one_deleted;
    }
    pending.remove(&(created, key.clone()));
    attempts.remove(&key);
    if pod::node_name(pod).is_some() || !present {
        assumed.remove(pod::uid(pod));
    }
    // A deleted or terminated pod frees resources.
    is_one_deleted || !present || pod::is_finished(pod)
}

/// Heartbeats free no resources.
fn node_helps(change: &Change<Node>) -> bool {
    match change {
        Change::Applied { old: Some(old), new } => {
            old.spec != new.spec || old.metadata.labels != new.metadata.labels
        }
        Change::Applied { old: None, .. } => true,
        Change::Deleted(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_that_was_replaced_unseen_is_not_scheduled() {
        let mk_pod = |uid: &str, created: &str| -> Arc<Pod> {
            let pod = json!({
                "metadata": {"name": "web", "namespace": "default", "uid": uid, "creationTimestamp": created},
                "spec": {"containers": []},
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let first = mk_pod("uid-1", "2026-01-01T00:00:00Z");
        let second = mk_pod("uid-2", "2026-01-01T00:01:00Z");
        let key = || ("default".to_owned(), "web".to_owned());
        let mut pending = BTreeMap::new();
        let mut attempts = BTreeMap::new();
        let mut assumed = BTreeMap::new();
        let mut apply = |old: Option<&Arc<Pod>>, new: &Arc<Pod>| {
            let (old, new) = (old.cloned(), new.clone());
            pod_changed(
                &mut pending,
                &mut attempts,
                &mut assumed,
                &Change::Applied { old, new },
            )
        };
        assert!(!apply(None, &first));
        assert!(apply(Some(&first), &second), "the first pod is gone");
        let uids: Vec<&str> = pending.values().map(|pod| pod::uid(pod)).collect();
        assert_eq!(uids, ["uid-2"]);
        // What the first pod was promised is not for the second one.
        attempts.insert(
            key(),
            Attempt {
                retry_at: Instant::now(),
                message: String::new(),
                node: Some("a".to_owned()),
            },
        );
        assumed.insert("uid-2".to_owned(), "a".to_owned());
        let third = mk_pod("uid-3", "2026-01-01T00:02:00Z");
        pod_changed(
            &mut pending,
            &mut attempts,
            &mut assumed,
            &Change::Applied {
                old: Some(second),
                new: third,
            },
        );
        assert!(attempts.is_empty() && assumed.is_empty());
        assert_eq!(pending.len(), 1);
    }
}
