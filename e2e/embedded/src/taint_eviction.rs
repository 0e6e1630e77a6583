//! The taint eviction controller of kube-controller-manager (`pkg/controller/tainteviction`): deletes pods that do not
//! tolerate a NoExecute taint of their node, or whose toleration has expired.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::api_error::ignore_not_found;
use crate::apiserver::Clock;
use crate::event_recorder::{EventRecorder, EventType};
use crate::informer::{Change, Key, key_of};
use crate::informers::Informers;
use crate::{node, pod};

/// Name of the controller in events.
pub(crate) const COMPONENT: &str = "taint-eviction-controller";
const EVENT_REASON: &str = "TaintManagerEviction";
const CONDITION_REASON: &str = "DeletionByTaintManager";
/// Delay before a failed deletion is retried. kube-controller-manager stops retrying after five attempts within 50 ms.
const RETRY_PERIOD: Duration = Duration::from_secs(5);

/// The taint eviction controller.
pub(crate) struct TaintEvictionController {
    pub client: Client,
    pub informers: Informers,
    pub recorder: EventRecorder,
    pub clock: Clock,
}

/// Scheduled deletions of pods.
#[derive(Debug, Default)]
struct EvictionQueue {
    by_pod: BTreeMap<Key, Instant>,
}

// === impl EvictionQueue ===

impl EvictionQueue {
    /// Schedules a deletion; an already scheduled one keeps its time, unless the pod must be deleted now.
    fn add(&mut self, pod: Key, now: Instant, tolerated: Duration) {
        if tolerated.is_zero() {
            self.by_pod.insert(pod, now);
        } else {
            self.by_pod.entry(pod).or_insert(now + tolerated);
        }
    }

    fn cancel(&mut self, pod: &Key) -> bool {
        self.by_pod.remove(pod).is_some()
    }

    /// The next deletion.
    fn first(&self) -> Option<(&Key, Instant)> {
        let first = self.by_pod.iter().min_by_key(|(_, due)| **due);
        first.map(|(pod, due)| (pod, *due))
    }
}

// === impl TaintEvictionController ===

impl TaintEvictionController {
    /// Runs until the future is dropped. The call subscribes, so that the controller misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let mut nodes = self.informers.nodes.subscribe();
        let mut pods = self.informers.pods.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let mut queue = EvictionQueue::default();
            loop {
                let first = queue.first().map(|(pod, due)| (pod.clone(), due));
                let due = async {
                    match first {
                        Some((pod, due)) => {
                            sleep_until(due).await;
                            pod
                        }
                        None => pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    Some(change) = nodes.recv() => self.node_changed(&mut queue, &change),
                    Some(change) = pods.recv() => self.pod_changed(&mut queue, &change),
                    pod = due => self.evict(&mut queue, pod).await,
                }
            }
        }
    }

    fn node_changed(&self, queue: &mut EvictionQueue, change: &Change<Node>) {
        let Change::Applied { old, new } = change else {
            return;
        };
        let taints = no_execute_taints(new);
        if old.as_ref().is_some_and(|old| no_execute_taints(old) == taints) {
            return;
        }
        let name = new.metadata.name.as_deref();
        for found in self.informers.pods.list() {
            if pod::node_name(&found) == name {
                self.process(queue, &found, &taints);
            }
        }
    }

    fn pod_changed(&self, queue: &mut EvictionQueue, change: &Change<Pod>) {
        let (old, new) = match change {
            Change::Applied { old, new } => (old, new),
            Change::Deleted(pod) => return self.cancel(queue, &key_of(&**pod)),
        };
        let of = |pod: &Arc<Pod>| (tolerations(pod).to_vec(), pod::node_name(pod).map(str::to_owned));
        if old.as_ref().is_some_and(|old| of(old) == of(new)) {
            return;
        }
        let node = pod::node_name(new).and_then(|name| self.informers.nodes.get("", name));
        let taints = node.map(|node| no_execute_taints(&node)).unwrap_or_default();
        if !taints.is_empty() {
            self.process(queue, new, &taints);
        }
    }

    fn process(&self, queue: &mut EvictionQueue, pod: &Pod, taints: &[Taint]) {
        match min_toleration_time(tolerations(pod), taints) {
            None => self.cancel(queue, &key_of(pod)),
            Some(tolerated) => queue.add(key_of(pod), Instant::now(), tolerated),
        }
    }

    fn cancel(&self, queue: &mut EvictionQueue, pod: &Key) {
        if queue.cancel(pod) {
            self.event(pod, "Cancelling deletion of Pod");
        }
    }

    async fn evict(&self, queue: &mut EvictionQueue, pod: Key) {
        self.event(&pod, "Marking for deletion Pod");
        if let Err(error) = ignore_not_found(self.delete(&pod).await) {
            tracing::debug!(pod = pod.1, %error, "pod was not evicted");
            queue.by_pod.insert(pod, Instant::now() + RETRY_PERIOD);
        } else {
            queue.by_pod.remove(&pod);
        }
    }

    async fn delete(&self, (namespace, name): &Key) -> kube::Result<()> {
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let pod = pods.get(name).await?;
        let conditions = pod
            .status
            .as_ref()
            .and_then(|status| status.conditions.as_deref());
        let is_marked = conditions.unwrap_or_default().iter().any(|condition| {
            condition.type_ == "DisruptionTarget" && condition.reason.as_deref() == Some(CONDITION_REASON)
        });
        if !is_marked {
            let condition = json!({
                "type": "DisruptionTarget",
                "observedGeneration": pod.metadata.generation,
                "status": "True",
                "lastTransitionTime": Time(self.clock.now()),
                "reason": CONDITION_REASON,
                "message": "Taint manager: deleting due to NoExecute taint",
            });
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}});
            pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
                .await?;
        }
        pods.delete(name, &DeleteParams::default()).await.map(drop)
    }

    fn event(&self, (namespace, name): &Key, what: &str) {
        let regarding = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            namespace: Some(namespace.clone()),
            name: Some(name.clone()),
            ..ObjectReference::default()
        };
        let message = format!("{what} {namespace}/{name}");
        self.recorder
            .event_about(regarding, EventType::Normal, EVENT_REASON, &message);
    }
}

// === functions ===

fn tolerations(pod: &Pod) -> &[Toleration] {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref());
    tolerations.unwrap_or_default()
}

fn no_execute_taints(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone());
    let taints = taints.into_iter().flatten();
    taints.filter(|taint| taint.effect == "NoExecute").collect()
}

/// Time that a pod with these tolerations may stay on a node with these NoExecute taints: the minimum over the taints,
/// each with its first matching toleration. `None`: forever.
fn min_toleration_time(tolerations: &[Toleration], taints: &[Taint]) -> Option<Duration> {
    let mut shortest: Option<Duration> = None;
    for taint in taints {
        let Some(found) = tolerations
            .iter()
            .find(|toleration| node::tolerates(toleration, taint))
        else {
            return Some(Duration::ZERO);
        };
        let Some(seconds) = found.toleration_seconds else {
            continue;
        };
        let time = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        shortest = Some(shortest.map_or(time, |shortest| shortest.min(time)));
    }
    shortest
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn shortest_toleration_of_all_taints_counts() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let (now, forever) = (seconds(0), None);
        let cases = [
            (json!([]), json!(["a"]), now),
            (json!([]), json!([]), forever),
            (json!([{"operator": "Exists"}]), json!(["a", "b"]), forever),
            (
                json!([{"key": "a", "operator": "Exists"}]),
                json!(["a", "b"]),
                now,
            ),
            (json!([{"key": "a", "value": "v"}]), json!(["a"]), forever),
            (json!([{"key": "a", "value": "other"}]), json!(["a"]), now),
            (
                json!([{"key": "a", "operator": "Gt", "value": "v"}]),
                json!(["a"]),
                now,
            ),
            (
                json!([{"key": "a", "operator": "Exists", "effect": "NoSchedule"}]),
                json!(["a"]),
                now,
            ),
            (
                json!([{"key": "a", "operator": "Exists", "tolerationSeconds": -1}]),
                json!(["a"]),
                now,
            ),
            (
                json!([
                    {"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9},
                    {"operator": "Exists", "tolerationSeconds": 5},
                ]),
                json!(["a"]),
                seconds(9),
            ),
            (
                json!([
                    {"key": "a", "operator": "Exists", "tolerationSeconds": 9},
                    {"operator": "Exists", "tolerationSeconds": 5},
                ]),
                json!(["a", "b"]),
                seconds(5),
            ),
        ];
        for (given, keys, expected) in cases {
            let taints = keys.as_array().unwrap().iter();
            let taints: Value = taints
                .map(|key| json!({"key": key, "value": "v", "effect": "NoExecute"}))
                .collect();
            let taints: Vec<Taint> = serde_json::from_value(taints).unwrap();
            let tolerations: Vec<Toleration> = serde_json::from_value(given.clone()).unwrap();
            assert_eq!(
                min_toleration_time(&tolerations, &taints),
                expected,
                "{given} {keys}"
            );
        }
    }

    #[test]
    fn scheduled_deletion_keeps_its_time() {
        let mut queue = EvictionQueue::default();
        let pod = || (String::new(), "a".to_owned());
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        queue.add(pod(), start, Duration::from_secs(300));
        queue.add(pod(), at(100), Duration::from_secs(300));
        assert_eq!(queue.first(), Some((&pod(), at(300))));
        queue.add(pod(), at(100), Duration::ZERO);
        assert_eq!(queue.first(), Some((&pod(), at(100))));
        assert!(queue.cancel(&pod()));
        assert!(!queue.cancel(&pod()));
        assert_eq!(queue.first(), None);
    }
}
