//! The node lifecycle controller of kube-controller-manager: sets the conditions of a node whose lease is no longer
//! renewed to Unknown, and taints the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::apiserver::Clock;
use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::{Change, Informer};
use crate::informers::Informers;
use crate::node::{self, NODE_LEASE_NAMESPACE, NOT_READY, UNREACHABLE};
use crate::pod;

/// Period of checking the nodes.
const MONITOR_PERIOD: Duration = Duration::from_secs(5);
/// Default time without heartbeats after which a node becomes Unknown.
pub(crate) const MONITOR_GRACE_PERIOD: Duration = Duration::from_secs(50);
/// The same time for a node that has not reported yet.
const STARTUP_GRACE_PERIOD: Duration = Duration::from_secs(60);
/// The conditions that kubelet reports, which become Unknown without heartbeats.
const CONDITIONS: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

/// The node lifecycle controller.
pub(crate) struct NodeLifecycleController {
    pub client: Client,
    pub informers: Informers,
    pub recorder: EventRecorder,
    pub clock: Clock,
    pub monitor_grace_period: Duration,
}

/// The renewal of a node's lease and the heartbeat of its Ready condition.
type Heartbeat = (Option<MicroTime>, Option<Time>);

/// When each node's heartbeat last changed, by the local clock: another machine's clock may differ.
#[derive(Debug, Default)]
struct Heartbeats {
    seen: BTreeMap<String, (Heartbeat, Instant)>,
}

/// The controller's state of the nodes.
#[derive(Debug, Default)]
struct KnownNodes {
    nodes: BTreeMap<String, Arc<Node>>,
    heartbeats: Heartbeats,
    /// Nodes whose pods must still be marked as not ready.
    nodes_to_retry: BTreeSet<String>,
}

// === impl Heartbeats ===

impl Heartbeats {
    /// Time since the node's last heartbeat.
    fn silent_for(&mut self, node: &str, heartbeat: Heartbeat, now: Instant) -> Duration {
        let (last, seen) = self
            .seen
            .entry(node.to_owned())
            .or_insert((heartbeat.clone(), now));
        if *last != heartbeat {
            *last = heartbeat;
            *seen = now;
        }
        now.duration_since(*seen)
    }
}

// === impl NodeLifecycleController ===

impl NodeLifecycleController {
    /// Runs until the future is dropped. The call subscribes, so that the controller misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let nodes = self.informers.nodes.subscribe();
        let leases = Informer::<Lease>::default();
        let api = Api::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        async move {
            let watching = leases.clone().run(api);
            futures::join!(watching, self.monitor(leases, nodes));
        }
    }

    async fn monitor(&self, leases: Informer<Lease>, mut nodes: UnboundedReceiver<Change<Node>>) {
        self.informers.wait_for_sync().await;
        leases.wait_for_sync().await;
        let mut known = KnownNodes::default();
        let mut ticks = interval(MONITOR_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(change) = nodes.recv() => {
                    if let Change::Applied { new, .. } = change {
                        self.update_taints(&new).await;
                    }
                }
                now = ticks.tick() => self.monitor_health(&leases, &mut known, now).await,
            }
        }
    }

    async fn monitor_health(&self, leases: &Informer<Lease>, known: &mut KnownNodes, now: Instant) {
        let nodes = self.informers.nodes.list();
        self.classify(&nodes, known);
        for node in nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let lease = leases.get(NODE_LEASE_NAMESPACE, name);
            let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
            let ready = node::condition(&node, "Ready");
            let grace_period = ready.map_or(STARTUP_GRACE_PERIOD, |_| self.monitor_grace_period);
            let heartbeat = (renewed, ready.and_then(|ready| ready.last_heartbeat_time.clone()));
            let is_silent = known.heartbeats.silent_for(name, heartbeat, now) > grace_period;
            let status = ready.map(|ready| ready.status.as_str());
            if is_silent && status != Some("Unknown") {
                if self.mark_unknown(&node).await.is_ok() && status == Some("True") {
                    let message = format!("Node {name} status is now: NodeNotReady");
                    self.node_event(&node, "NodeNotReady", &message);
                    known.nodes_to_retry.insert(name.to_owned());
                }
            } else {
                self.update_taints(&node).await;
            }
            let is_lost = known.nodes_to_retry.contains(name) && (is_silent || status != Some("True"));
            if !is_lost || self.mark_pods_not_ready(name).await.is_ok() {
                known.nodes_to_retry.remove(name);
            }
        }
    }

    /// Emits RegisteredNode and RemovingNode events.
    fn classify(&self, nodes: &[Arc<Node>], known: &mut KnownNodes) {
        let name = |node: &Node| node.metadata.name.clone().unwrap_or_default();
        let present: BTreeMap<_, _> = nodes.iter().map(|node| (name(node), node.clone())).collect();
        let record = |node: &Node, reason, what: &str| {
            let message = format!("Node {} event: {what}", name(node));
            self.node_event(node, reason, &message);
        };
        for (name, node) in present
            .iter()
            .filter(|(name, _)| !known.nodes.contains_key(*name))
        {
            record(
                node,
                "RegisteredNode",
                &format!("Registered Node {name} in Controller"),
            );
        }
        for (name, node) in known
            .nodes
            .iter()
            .filter(|(name, _)| !present.contains_key(*name))
        {
            record(
                node,
                "RemovingNode",
                &format!("Removing Node {name} from Controller"),
            );
            known.heartbeats.seen.remove(name);
            known.nodes_to_retry.remove(name);
        }
        known.nodes = present;
    }

    /// As upstream, the reference has no namespace, so the event is in `default`.
    fn node_event(&self, node: &Node, reason: &str, message: &str) {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: node.metadata.name.clone(),
            uid: node.metadata.uid.clone(),
            ..ObjectReference::default()
        };
        self.recorder
            .event_about(regarding, EventType::Normal, reason, message);
    }

    async fn mark_unknown(&self, node: &Node) -> kube::Result<()> {
        let now = Time(self.clock.now());
        let conditions: Vec<Value> = CONDITIONS
            .iter()
            .filter_map(|kind| match node::condition(node, kind) {
                None => Some(json!({
                    "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                    "message": "Kubelet never posted node status.",
                    "lastHeartbeatTime": node.metadata.creation_timestamp, "lastTransitionTime": now,
                })),
                Some(condition) if condition.status == "Unknown" => None,
                Some(_) => Some(json!({
                    "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.", "lastTransitionTime": now,
                })),
            })
            .collect();
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Strategic(json!({"status": {"conditions": conditions}}));
        let nodes = Api::<Node>::all(self.client.clone());
        let marked = nodes.patch_status(name, &PatchParams::default(), &patch).await;
        if let Err(error) = &marked {
            tracing::debug!(node = name, %error, "node was not marked as unknown");
        }
        marked.map(drop)
    }

    /// `MarkPodsNotReady`: as upstream, it continues after a failed write, and the pod still gets its event.
    ///
    /// # Errors
    /// The last failure; the next round retries it.
    async fn mark_pods_not_ready(&self, node: &str) -> kube::Result<()> {
        let mut marked = Ok(());
        for pod in self.informers.pods.list() {
            if pod::node_name(&pod) != Some(node)
                || pod::ready_status(&pod).is_none_or(|ready| ready == "False")
            {
                continue;
            }
            let ready =
                json!({"type": "Ready", "status": "False", "lastTransitionTime": Time(self.clock.now())});
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [ready]}});
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
            match pods
                .patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
                .await
            {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => continue,
                Err(error) => {
                    tracing::debug!(pod = name, %error, "pod was not marked as not ready");
                    marked = Err(error);
                }
            }
            self.recorder
                .event(&*pod, EventType::Warning, "NodeNotReady", "Node is not ready");
        }
        marked
    }

    /// The next round retries a failed write, including a conflict.
    async fn update_taints(&self, node: &Node) {
        let Some(taints) = changed_taints(node, &Time(self.clock.now())) else {
            return;
        };
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let patch = Patch::Merge(json!({
            "metadata": {"resourceVersion": node.metadata.resource_version},
            "spec": {"taints": taints},
        }));
        let nodes = Api::<Node>::all(self.client.clone());
        if let Err(error) = nodes.patch(name, &PatchParams::default(), &patch).await {
            tracing::debug!(node = name, %error, "taints were not updated");
        }
    }
}

// === functions ===

/// The taints that the node's Ready condition requires; `None` if they are unchanged.
fn changed_taints(node: &Node, now: &Time) -> Option<Vec<Value>> {
    let status = node::ready_status(node);
    let (wanted, unwanted) = match status {
        Some("True") => (None, vec![NOT_READY, UNREACHABLE]),
        Some("Unknown") => (Some(UNREACHABLE), vec![NOT_READY]),
        _ => (Some(NOT_READY), vec![UNREACHABLE]),
    };
    let known = node
        .spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default();
    let find = |key: &str, effect: &str| {
        let mut taints = known.iter();
        taints.find(|taint| taint.key == key && taint.effect == effect)
    };
    // A node that was never ready only gets the NoSchedule taint.
    let effects: &[&str] = if status.is_some() {
        &["NoSchedule", "NoExecute"]
    } else {
        &["NoSchedule"]
    };
    let complete = wanted.is_none_or(|key| effects.iter().all(|effect| find(key, effect).is_some()));
    let clean = !known.iter().any(|taint| unwanted.contains(&taint.key.as_str()));
    if complete && clean {
        return None;
    }
    let mut taints: Vec<Value> = known
        .iter()
        .filter(|taint| taint.key != NOT_READY && taint.key != UNREACHABLE)
        .map(|taint| json!(taint))
        .collect();
    if let Some(key) = wanted {
        taints.extend(effects.iter().map(|effect| match find(key, effect) {
            Some(known) => json!(known),
            None => json!({"key": key, "effect": effect, "timeAdded": now}),
        }));
    }
    Some(taints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_silent_while_its_lease_is_not_renewed() {
        let mut heartbeats = Heartbeats::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let renewed = |second| Some(MicroTime(jiff::Timestamp::from_second(second).unwrap()));
        for (lease, now, silent) in [(1, 0, 0), (1, 50, 50), (1, 51, 51), (2, 52, 0)] {
            let silent_for = heartbeats.silent_for("a", (renewed(lease), None), at(now));
            assert_eq!(silent_for, Duration::from_secs(silent), "at {now} s");
        }
    }

    #[test]
    fn taints_follow_the_ready_condition() {
        let node = |ready: Option<&str>, taints: &[(&str, &str)]| -> Node {
            let conditions: Vec<_> = ready
                .iter()
                .map(|status| json!({"type": "Ready", "status": status}))
                .collect();
            let taints: Vec<_> = taints
                .iter()
                .map(|(key, effect)| json!({"key": key, "effect": effect}))
                .collect();
            serde_json::from_value(json!({"spec": {"taints": taints}, "status": {"conditions": conditions}}))
                .unwrap()
        };
        let other = ("other", "NoSchedule");
        let new = (NOT_READY, "NoSchedule");
        let lost = [(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")];
        let cases: [(Node, Option<&[&str]>); 6] = [
            (node(Some("True"), &[other, new]), Some(&["other"])),
            (node(Some("True"), &[other]), None),
            (node(Some("True"), &lost), Some(&[])),
            (
                node(Some("Unknown"), &[other]),
                Some(&["other", UNREACHABLE, UNREACHABLE]),
            ),
            (node(Some("Unknown"), &lost), None),
            (node(None, &[new]), None),
        ];
        for (number, (node, expected)) in cases.into_iter().enumerate() {
            let now = Time(jiff::Timestamp::UNIX_EPOCH);
            let keys = changed_taints(&node, &now).map(|taints| {
                taints
                    .iter()
                    .map(|taint| taint["key"].as_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            });
            assert_eq!(
                keys.as_deref()
                    .map(|k| k.iter().map(String::as_str).collect::<Vec<_>>()),
                expected.map(<[&str]>::to_vec),
                "case {number}"
            );
        }
    }
}
