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
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::clock::Clock;
use crate::informer::Informer;
use crate::informers::Informers;
use crate::kubelet::NODE_LEASE_NAMESPACE;
use crate::node;
use crate::pod;

/// How often nodes are looked at.
const MONITOR_PERIOD: Duration = Duration::from_secs(5);
/// How long a node may be silent.
const MONITOR_GRACE_PERIOD: Duration = Duration::from_secs(50);
/// How long a pod tolerates an unreachable node unless it says otherwise.
const DEFAULT_TOLERATION: Duration = Duration::from_secs(300);
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The controller.
pub(crate) struct NodeLifecycleController {
    pub client: Client,
    pub informers: Informers,
    pub clock: Clock,
}

/// When a node's lease changed last, by our clock: another machine's time says nothing.
#[derive(Debug, Default)]
struct Heartbeats {
    seen: BTreeMap<String, (Option<MicroTime>, Instant)>,
    unreachable_since: BTreeMap<String, Instant>,
}

// === impl Heartbeats ===

impl Heartbeats {
    /// Whether the node has been silent for too long.
    fn is_silent(&mut self, node: &str, renewed: Option<MicroTime>, now: Instant) -> bool {
        let (last, seen) = self.seen.entry(node.to_owned()).or_insert((renewed.clone(), now));
        if *last != renewed {
            *last = renewed;
            *seen = now;
        }
        now.duration_since(*seen) > MONITOR_GRACE_PERIOD
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
    /// Runs for ever.
    pub(crate) async fn run(self) {
        let leases = Informer::<Lease>::default();
        let api = Api::namespaced(self.client.clone(), NODE_LEASE_NAMESPACE);
        let watching = leases.clone().run(api, watcher::Config::default());
        futures::join!(watching, self.monitor(leases));
    }

    async fn monitor(&self, leases: Informer<Lease>) {
        self.informers.wait_for_sync().await;
        leases.wait_for_sync().await;
        let mut heartbeats = Heartbeats::default();
        let mut ticks = interval(MONITOR_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let now = ticks.tick().await;
            for node in self.informers.nodes.list() {
                let name = node.metadata.name.as_deref().unwrap_or_default();
                let lease = leases.get(NODE_LEASE_NAMESPACE, name);
                let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.clone());
                let silent = heartbeats.is_silent(name, renewed, now);
                if let Err(error) = self.update(&node, name, silent).await {
                    tracing::debug!(node = name, %error, "node was not updated");
                }
                if let Some(elapsed) = heartbeats.unreachable_for(name, silent, now) {
                    self.evict(name, elapsed).await;
                }
            }
        }
    }

    async fn update(&self, node: &Node, name: &str, silent: bool) -> kube::Result<()> {
        let nodes = Api::<Node>::all(self.client.clone());
        if silent && node::is_ready(node) {
            let now = Time(self.clock.now());
            let condition = json!({
                "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.", "lastTransitionTime": now,
            });
            let patch = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
            nodes.patch_status(name, &PatchParams::default(), &patch).await?;
        }
        let tainted = node::has_taint(node, UNREACHABLE);
        if silent != tainted {
            let patch = Patch::Merge(json!({
                "metadata": {"resourceVersion": node.metadata.resource_version},
                "spec": {"taints": taints(node, silent)},
            }));
            // The version just changed if the condition was written; then the next round adds the taint.
            match nodes.patch(name, &PatchParams::default(), &patch).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                patched => drop(patched?),
            }
        }
        Ok(())
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

/// The node's taints with or without those of an unreachable node.
fn taints(node: &Node, unreachable: bool) -> Vec<Value> {
    let known = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    let others = known
        .into_iter()
        .flatten()
        .filter(|taint| taint.key != UNREACHABLE);
    let mut taints: Vec<Value> = others.map(|taint| json!(taint)).collect();
    if unreachable {
        taints
            .extend(["NoSchedule", "NoExecute"].map(|effect| json!({"key": UNREACHABLE, "effect": effect})));
    }
    taints
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
    fn node_is_silent_after_its_lease_stood_still_for_the_grace_period() {
        let mut heartbeats = Heartbeats::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let renewed = |second| Some(MicroTime(jiff::Timestamp::from_second(second).unwrap()));
        assert!(!heartbeats.is_silent("a", renewed(1), at(0)));
        assert!(!heartbeats.is_silent("a", renewed(1), at(50)));
        assert!(heartbeats.is_silent("a", renewed(1), at(51)));
        assert!(!heartbeats.is_silent("a", renewed(2), at(52)), "it is back");
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
