//! The pvc-protection and pv-protection controllers: finalizers protect claims in use by pods, and bound volumes.

use std::borrow::Borrow;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use super::Item;
use super::claims::volume_phase;
use crate::informer::{Change, has_finalizer, key_of};
use crate::informers::Informers;
use crate::pod;
use crate::volume::{CLAIM_FINALIZER, claim_name, claims_of};
use crate::workqueue::WorkQueue;

const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(10);

/// The action for an object's finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Decision {
    Keep,
    Add,
    Remove,
}

/// Both controllers.
pub(crate) struct ProtectionController {
    pub client: Client,
    pub informers: Informers,
}

// === impl ProtectionController ===

impl ProtectionController {
    /// Runs until the future is dropped. The call subscribes, so that the controllers miss no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let mut claims = self.informers.claims.subscribe();
        let mut volumes = self.informers.volumes.subscribe();
        let mut pods = self.informers.pods.subscribe();
        async move {
            self.informers.wait_for_sync().await;
            let mut queue = WorkQueue::new(FIRST_RETRY, MAX_RETRY);
            loop {
                let due = queue.next_due();
                tokio::select! {
                    biased;
                    Some(change) = claims.recv() => claim_changed(&mut queue, &change),
                    Some(change) = volumes.recv() => volume_changed(&mut queue, &change),
                    Some(change) = pods.recv() => pod_changed(&mut queue, &change),
                    () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
                }
                while let Some(item) = queue.pop(Instant::now()) {
                    if self.sync(&item).await.is_ok() {
                        queue.forget(&item);
                    } else {
                        queue.add_rate_limited(item, Instant::now());
                    }
                }
            }
        }
    }

    async fn sync(&self, item: &Item) -> kube::Result<()> {
        match item {
            Item::Claim((namespace, name)) => match self.informers.claims.get(namespace, name) {
                Some(claim) => {
                    let mut decision = decide(&*claim, CLAIM_FINALIZER, || {
                        is_used(&claim, &self.informers.pods.list())
                    });
                    if decision == Decision::Remove {
                        // The informer may lack a new pod.
                        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
                        let pods = pods.list(&ListParams::default()).await?;
                        decision = decide(&*claim, CLAIM_FINALIZER, || is_used(&claim, &pods.items));
                    }
                    let claims = Api::namespaced(self.client.clone(), namespace);
                    carry_out(&claims, &*claim, CLAIM_FINALIZER, decision).await
                }
                None => Ok(()),
            },
            Item::Volume(name) => match self.informers.volumes.get("", name) {
                Some(volume) => {
                    let decision = decide(&*volume, VOLUME_FINALIZER, || volume_phase(&volume) == "Bound");
                    let volumes = Api::<PersistentVolume>::all(self.client.clone());
                    carry_out(&volumes, &*volume, VOLUME_FINALIZER, decision).await
                }
                None => Ok(()),
            },
        }
    }
}

// === functions ===

/// A pod uses its claims from its scheduling until its object is deleted.
fn is_used<P: Borrow<Pod>>(claim: &PersistentVolumeClaim, pods: &[P]) -> bool {
    pods.iter().map(Borrow::borrow).any(|pod| {
        pod.metadata.namespace == claim.metadata.namespace
            && pod::node_name(pod).is_some()
            && pod::volumes(pod).iter().any(|volume| {
                // An ephemeral claim of a pod that has ended, or of another owner, is not used.
                let is_ephemeral = volume.ephemeral.is_some();
                claim_name(pod, volume) == claim.metadata.name
                    && (!is_ephemeral || (pod::owns(pod, &claim.metadata) && !is_shut_down(pod)))
            })
    })
}

/// Whether kubelet has processed the pod's deletion, or the pod was force-deleted.
fn is_shut_down(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

fn claim_changed(queue: &mut WorkQueue<Item>, change: &Change<PersistentVolumeClaim>) {
    if let Change::Applied { new, .. } = change {
        queue.add_unless_delayed(Item::Claim(key_of(&**new)));
    }
}

fn volume_changed(queue: &mut WorkQueue<Item>, change: &Change<PersistentVolume>) {
    if let Change::Applied { new, .. } = change {
        queue.add_unless_delayed(Item::Volume(new.metadata.name.clone().unwrap_or_default()));
    }
}

/// Enqueues the claims of a deleted, unscheduled or terminated pod, which may be unused now (`podAddedDeletedUpdated`).
fn pod_changed(queue: &mut WorkQueue<Item>, change: &Change<Pod>) {
    match change {
        Change::Applied { new, .. } => {
            if pod::node_name(new).is_none() || pod::is_terminated(new) {
                enqueue_claims(queue, new);
            }
            if let Some(old) = change.replaced() {
                enqueue_claims(queue, old);
            }
        }
        Change::Deleted(pod) => enqueue_claims(queue, pod),
    }
}

fn enqueue_claims(queue: &mut WorkQueue<Item>, pod: &Pod) {
    for claim in claims_of(pod) {
        queue.add_unless_delayed(Item::Claim(claim));
    }
}

fn decide<K: Resource>(object: &K, finalizer: &str, is_used: impl Fn() -> bool) -> Decision {
    let meta = object.meta();
    let protected = has_finalizer(meta, finalizer);
    match (meta.deletion_timestamp.is_some(), protected) {
        (false, false) => Decision::Add,
        (true, true) if !is_used() => Decision::Remove,
        (false | true, true) | (true, false) => Decision::Keep,
    }
}

async fn carry_out<K>(api: &Api<K>, object: &K, finalizer: &str, decision: Decision) -> kube::Result<()>
where
    K: Resource + Clone + DeserializeOwned + std::fmt::Debug,
{
    let uid = &object.meta().uid;
    let patch = match decision {
        Decision::Keep => return Ok(()),
        Decision::Add => json!({"metadata": {"uid": uid, "finalizers": [finalizer]}}),
        Decision::Remove => {
            json!({"metadata": {"uid": uid, "$deleteFromPrimitiveList/finalizers": [finalizer]}})
        }
    };
    let name = object.meta().name.as_deref().unwrap_or_default();
    match api
        .patch(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
    {
        Err(kube::Error::Api(status)) if [404, 422].contains(&status.code) => Ok(()),
        patched => patched.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn finalizer_stays_while_the_object_is_used() {
        // deleting, protected, used
        let cases = [
            (false, false, false, Decision::Add),
            (false, true, false, Decision::Keep),
            (true, true, true, Decision::Keep),
            (true, true, false, Decision::Remove),
            (true, false, false, Decision::Keep),
        ];
        for (deleting, protected, used, expected) in cases {
            let mut claim = PersistentVolumeClaim::default();
            if deleting {
                claim.metadata.deletion_timestamp =
                    serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
            }
            claim.metadata.finalizers = protected.then(|| vec![CLAIM_FINALIZER.to_owned()]);
            assert_eq!(
                decide(&claim, CLAIM_FINALIZER, || used),
                expected,
                "deleting {deleting}, protected {protected}, used {used}"
            );
        }
    }

    #[test]
    fn ephemeral_claim_is_used_only_by_its_owner_until_that_is_shut_down() {
        let mk_pod = |grace: Option<i64>| -> Pod {
            let pod = json!({
                "metadata": {"name": "web", "namespace": "default", "uid": "uid-web",
                    "deletionTimestamp": grace.map(|_| "2026-01-01T00:00:00Z"),
                    "deletionGracePeriodSeconds": grace},
                "spec": {"containers": [], "nodeName": "a",
                    "volumes": [{"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}]},
            });
            serde_json::from_value(pod).unwrap()
        };
        let mk_claim = |owner: &str| -> PersistentVolumeClaim {
            let claim = json!({"metadata": {"name": "web-data", "namespace": "default", "ownerReferences":
                [{"apiVersion": "v1", "kind": "Pod", "name": "web", "uid": owner, "controller": true}]}});
            serde_json::from_value(claim).unwrap()
        };
        let cases = [
            ("uid-web", None, true),
            ("uid-web", Some(30), true),
            ("uid-web", Some(0), false),
            ("uid-other", None, false),
        ];
        for (owner, grace, expected) in cases {
            let used = is_used(&mk_claim(owner), &[mk_pod(grace)]);
            assert_eq!(used, expected, "owner {owner}, grace period {grace:?}");
        }
    }

    #[test]
    fn enqueues_the_claims_of_a_replaced_unscheduled_or_terminated_pod() {
        let mk_pod = |uid: &str, claim: &str, node: Option<&str>| -> Arc<Pod> {
            let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
            let pod = json!({
                "metadata": {"name": "web", "namespace": "default", "uid": uid},
                "spec": {"containers": [], "nodeName": node, "volumes": volumes},
            });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let first = mk_pod("uid-1", "first", Some("a"));
        let cases = [
            (None, mk_pod("uid-1", "first", Some("a")), None),
            (None, mk_pod("uid-1", "first", None), Some("first")),
            (Some(first.clone()), first.clone(), None),
            (Some(first), mk_pod("uid-2", "second", Some("a")), Some("first")),
        ];
        for (old, new, expected) in cases {
            let mut queue = WorkQueue::new(FIRST_RETRY, MAX_RETRY);
            pod_changed(&mut queue, &Change::Applied { old, new });
            let expected = expected.map(|claim| Item::Claim(("default".to_owned(), claim.to_owned())));
            assert_eq!(queue.pop(Instant::now()), expected);
            assert_eq!(queue.pop(Instant::now()), None);
        }
    }
}
