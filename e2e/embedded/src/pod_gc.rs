//! The node-related part of kube-controller-manager's pod garbage collector: deletes pods whose node does not exist or
//! is out of service, and terminating pods that were never scheduled.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::api_error::ignore_not_found;
use crate::apiserver::Clock;
use crate::informers::Informers;
use crate::node;
use crate::pod;

/// Period of checking the pods.
const GC_PERIOD: Duration = Duration::from_secs(20);
/// Time between the deletion of a node and that of its pods.
const QUARANTINE: Duration = Duration::from_secs(40);

/// The reason for deleting a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Orphaned,
    OutOfService,
    UnscheduledTerminating,
}

/// The pod garbage collector.
pub(crate) struct PodGc {
    pub clock: Clock,
    pub client: Client,
    pub informers: Informers,
}

// === impl Reason ===

impl Reason {
    /// The reason for deleting the pod, if any; `gone_for`: time since its node was deleted.
    fn of(pod: &Pod, node: Option<&Node>, gone_for: Option<Duration>) -> Option<Self> {
        let Some(_) = pod::node_name(pod) else {
            return pod::is_deleting(pod).then_some(Self::UnscheduledTerminating);
        };
        match node {
            None => gone_for
                .is_some_and(|gone| gone >= QUARANTINE)
                .then_some(Self::Orphaned),
            Some(node) => {
                let lost = !node::is_ready(node) && node::has_taint(node, node::OUT_OF_SERVICE);
                (pod::is_deleting(pod) && lost).then_some(Self::OutOfService)
            }
        }
    }
}

// === impl PodGc ===

impl PodGc {
    /// Runs until the future is dropped.
    pub(crate) async fn run(self) {
        self.informers.wait_for_sync().await;
        let mut ticks = interval(GC_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut missing: BTreeMap<String, Instant> = BTreeMap::new();
        loop {
            let now = ticks.tick().await;
            let pods = self.informers.pods.list();
            missing.retain(|name, _| self.informers.nodes.get("", name).is_none());
            for pod in pods {
                let name = pod::node_name(&pod).unwrap_or_default();
                let node = self.informers.nodes.get("", name);
                let gone_for = (node.is_none() && !name.is_empty())
                    .then(|| now - *missing.entry(name.to_owned()).or_insert(now));
                if let Some(reason) = Reason::of(&pod, node.as_deref(), gone_for)
                    && let Err(error) = self.remove(&pod, reason).await
                {
                    tracing::debug!(pod = pod.metadata.name, %error, "pod was not removed");
                }
            }
        }
    }

    async fn remove(&self, pod: &Pod, reason: Reason) -> kube::Result<()> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        if reason == Reason::Orphaned {
            // The informer may lack a new node.
            let node = pod::node_name(pod).unwrap_or_default();
            if Api::<Node>::all(self.client.clone())
                .get_opt(node)
                .await?
                .is_some()
            {
                return Ok(());
            }
        }
        if !pod::is_finished(pod) {
            let generation = pod.metadata.generation;
            let mut status = json!({"phase": "Failed", "observedGeneration": generation});
            if reason == Reason::Orphaned {
                status["conditions"] = json!([{
                    "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists", "observedGeneration": generation,
                    "lastTransitionTime": Time(self.clock.now()),
                }]);
            }
            let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
            pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
                .await?;
        }
        let params = DeleteParams::default()
            .grace_period(0)
            .preconditions(Preconditions {
                uid: pod.metadata.uid.clone(),
                resource_version: None,
            });
        ignore_not_found(pods.delete(name, &params).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_lost_nodes_are_removed() {
        let mk_node = |ready: &str, taint: Option<&str>| -> Node {
            let taints: Vec<_> = taint
                .iter()
                .map(|key| json!({"key": key, "effect": "NoExecute"}))
                .collect();
            serde_json::from_value(json!({
                "spec": {"taints": taints},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }))
            .unwrap()
        };
        let mk_pod = |node: Option<&str>, deleting: bool| -> Pod {
            let deleted = deleting.then_some("2026-01-01T00:00:00Z");
            serde_json::from_value(json!({
                "metadata": {"deletionTimestamp": deleted}, "spec": {"nodeName": node, "containers": []},
            }))
            .unwrap()
        };
        let lost = mk_node("Unknown", Some(node::OUT_OF_SERVICE));
        let tainted = mk_node("True", Some(node::OUT_OF_SERVICE));
        let silent = mk_node("Unknown", None);
        let long = Some(QUARANTINE);
        let cases = [
            (
                mk_pod(Some("a"), true),
                Some(&lost),
                None,
                Some(Reason::OutOfService),
            ),
            (mk_pod(Some("a"), false), Some(&lost), None, None),
            (mk_pod(Some("a"), true), Some(&tainted), None, None),
            (mk_pod(Some("a"), true), Some(&silent), None, None),
            (mk_pod(Some("a"), false), None, long, Some(Reason::Orphaned)),
            (
                mk_pod(Some("a"), false),
                None,
                Some(Duration::from_secs(39)),
                None,
            ),
            (
                mk_pod(None, true),
                None,
                None,
                Some(Reason::UnscheduledTerminating),
            ),
            (mk_pod(None, false), None, None, None),
        ];
        for (number, (pod, node, gone_for, expected)) in cases.into_iter().enumerate() {
            assert_eq!(Reason::of(&pod, node, gone_for), expected, "case {number}");
        }
    }
}
