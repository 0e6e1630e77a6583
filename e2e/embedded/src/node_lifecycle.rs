//! The node lifecycle controller of kube-controller-manager: a node whose lease is no longer renewed becomes Unknown,
//! is tainted, and loses its pods after their toleration ended.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::apiserver::Clock;
use crate::informer::{Change, Informer};
use crate::informers::Informers;
use crate::kubelet::NODE_LEASE_NAMESPACE;
use crate::node;
use crate::pod;

/// How often nodes are looked at.
const MONITOR_PERIOD: Duration = Duration::from_secs(5);
/// How long a node may be silent, unless the options say otherwise.
pub(crate) const MONITOR_GRACE_PERIOD: Duration = Duration::from_secs(50);
/// How long a pod tolerates an unreachable node unless it says otherwise.
const DEFAULT_TOLERATION: Duration = Duration::from_secs(300);
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";
/// Admission gives it to every new node; it goes when the node is ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The controller.
pub(crate) struct NodeLifecycleController {
    pub client: Client,
    pub informers: Informers,
    pub clock: Clock,
    pub monitor_grace_period: Duration,
}

/// When a node's lease changed last, by our clock: another machine's time says nothing.
#[derive(Debug, Default)]
struct Heartbeats {
    seen: BTreeMap<String, (Option<MicroTime>, Instant)>,
    unreachable_since: BTreeMap<String, Instant>,
}

// === impl Heartbeats ===

impl Heartbeats {
    /// For how long the node has been silent.
    fn silent_for(&mut self, node: &str, renewed: Option<MicroTime>, now: Instant) -> Duration {
        let (last, seen) = self.seen.entry(node.to_owned()).or_insert((renewed.clone(), now));
        if *last != renewed {
            *last = renewed;
            *seen = now;
        }
        now.duration_since(*seen)
    }

    /// For how long the node has been unreachable.
    fn unreachable_for(&mut self, node: &str, unreachable: bool, now: Instant) -> Option<Duration> {
        if !unreachable {
            self.unreachable_since.remove(node);
            return None;
        }
        let since = self.unreachable_since.entry(node.to_owned()).or_insert(now);
        Some(now.duration_since(*since))
    }
}

// === impl NodeLifecycleController ===

impl NodeLifecycleController {
    /// Runs for ever. Subscribes at the call, so that no change is missed.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let nodes = self.informers.nodes.subscribe();
        let leases = Informer::<Lease>::default();
        let api = Api::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        async move {
            let watching = leases.clone().run(api, watcher::Config::default());
            futures::join!(watching, self.monitor(leases, nodes));
        }
    }

    async fn monitor(&self, leases: Informer<Lease>, mut nodes: UnboundedReceiver<Change<Node>>) {
        self.informers.wait_for_sync().await;
        leases.wait_for_sync().await;
        let mut heartbeats = Heartbeats::default();
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
                now = ticks.tick() => self.monitor_health(&leases, &mut heartbeats, now).await,
            }
        }
    }

    async fn monitor_health(&self, leases: &Informer<Lease>, heartbeats: &mut Heartbeats, now: Instant) {
        for node in self.informers.nodes.list() {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            let lease = leases.get(NODE_LEASE_NAMESPACE, name);
            let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
            let silent = heartbeats.silent_for(name, renewed, now) > self.monitor_grace_period;
            if silent && node::is_ready(&node) {
                self.mark_unknown(name).await;
            } else {
                self.update_taints(&node).await;
            }
            if let Some(elapsed) = heartbeats.unreachable_for(name, silent, now) {
                self.evict(name, elapsed).await;
            }
        }
    }

    async fn mark_unknown(&self, name: &str) {
        let now = Time(self.clock.now());
        let condition = json!({
            "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.", "lastTransitionTime": now,
        });
        let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
        let nodes = Api::<Node>::all(self.client.clone());
        if let Err(error) = nodes.patch_status(name, &PatchParams::default(), &patch).await {
            tracing::debug!(node = name, %error, "node was not marked as unknown");
        }
    }

    /// A write that fails, also because the node changed meanwhile, is repeated with the next round.
    async fn update_taints(&self, node: &Node) {
        let Some(taints) = changed_taints(node) else {
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

    async fn evict(&self, node: &str, elapsed: Duration) {
        for pod in self.informers.pods.list() {
            let due = toleration(&pod).is_some_and(|tolerated| elapsed >= tolerated);
            if pod::node_name(&pod) != Some(node) || pod::is_deleting(&pod) || !due {
                continue;
            }
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            });
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
            if let Err(error) = pods.delete(name, &params).await {
                tracing::debug!(pod = name, %error, "pod was not evicted");
            }
        }
    }
}

// === functions ===

/// The node's taints as its Ready condition wants them, if they are others.
fn changed_taints(node: &Node) -> Option<Vec<Value>> {
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
    let has = |key: &str, effect: &str| {
        known
            .iter()
            .any(|taint| taint.key == key && taint.effect == effect)
    };
    // A node that never was ready repels new pods only.
    let effects: &[&str] = if status.is_some() {
        &["NoSchedule", "NoExecute"]
    } else {
        &["NoSchedule"]
    };
    let complete = wanted.is_none_or(|key| effects.iter().all(|effect| has(key, effect)));
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
        taints.extend(effects.iter().map(|effect| json!({"key": key, "effect": effect})));
    }
    Some(taints)
}

/// How long the pod tolerates an unreachable node; `None` for ever.
fn toleration(pod: &Pod) -> Option<Duration> {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_ref());
    let tolerating = tolerations.into_iter().flatten().find(|toleration| {
        toleration.key.as_ref().is_none_or(|key| key == UNREACHABLE)
            && toleration
                .effect
                .as_ref()
                .is_none_or(|effect| effect == "NoExecute")
    });
    match tolerating.map(|toleration| toleration.toleration_seconds) {
        // Admission gives every pod this toleration.
        None => Some(DEFAULT_TOLERATION),
        Some(None) => None,
        Some(Some(seconds)) => Some(Duration::from_secs(u64::try_from(seconds).unwrap_or_default())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_silent_while_its_lease_stands_still() {
        let mut heartbeats = Heartbeats::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let renewed = |second| Some(MicroTime(jiff::Timestamp::from_second(second).unwrap()));
        for (lease, now, silent) in [(1, 0, 0), (1, 50, 50), (1, 51, 51), (2, 52, 0)] {
            let silent_for = heartbeats.silent_for("a", renewed(lease), at(now));
            assert_eq!(silent_for, Duration::from_secs(silent), "at {now} s");
        }
        assert_eq!(
            heartbeats.unreachable_for("a", true, at(60)),
            Some(Duration::ZERO)
        );
        assert_eq!(
            heartbeats.unreachable_for("a", true, at(70)),
            Some(Duration::from_secs(10))
        );
        assert_eq!(heartbeats.unreachable_for("a", false, at(80)), None);
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
            let keys = changed_taints(&node).map(|taints| {
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

    #[test]
    fn pods_leave_an_unreachable_node_after_their_toleration() {
        let pod = |tolerations: Value| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [], "tolerations": tolerations}})).unwrap()
        };
        let cases = [
            (json!([]), Some(300)),
            (
                json!([{"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]),
                Some(5),
            ),
            (json!([{"operator": "Exists"}]), None),
        ];
        for (tolerations, expected) in cases {
            let expected = expected.map(Duration::from_secs);
            assert_eq!(toleration(&pod(tolerations.clone())), expected, "{tolerations}");
        }
    }
}
