//! Users with StatefulSets: a deleted pod or claim is created again under the same name, the pod on any node that is in
//! service.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fastrand::Rng;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use crate::observer::Observer;
use crate::world::is_deleted;
use csi_e2e::mutex::lock;

/// Interval of the users' checks.
const PERIOD: Duration = Duration::from_secs(1);

/// The users of one history. Clones share them.
#[derive(Clone)]
pub(crate) struct Users {
    client: Client,
    observer: Observer,
    wanted: Arc<Mutex<Wanted>>,
}

struct Wanted {
    pods: BTreeMap<String, Claim>,
    /// The nodes on which new pods may be placed.
    nodes: BTreeSet<String>,
    random: Rng,
}

/// The claim of a pod.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    name: String,
    /// The StorageClass, if the users create the claim.
    class: Option<&'static str>,
}

// === impl Claim ===

impl Claim {
    /// The claim of the static volume with this number.
    pub(crate) fn bound(volume: usize) -> Self {
        Self {
            name: format!("claim-{volume}"),
            class: None,
        }
    }

    /// The claim of a pod whose StatefulSet has a template.
    pub(crate) fn from_template(pod: &str, class: &'static str) -> Self {
        Self {
            name: format!("data-{pod}"),
            class: Some(class),
        }
    }
}

// === impl Users ===

impl Users {
    pub(crate) fn new(
        client: Client,
        observer: Observer,
        pods: impl IntoIterator<Item = (String, Claim)>,
        nodes: &[&str],
        seed: u64,
    ) -> Self {
        Self {
            client,
            observer,
            wanted: Arc::new(Mutex::new(Wanted {
                pods: pods.into_iter().collect(),
                nodes: nodes.iter().map(|node| (*node).to_owned()).collect(),
                random: Rng::with_seed(seed),
            })),
        }
    }

    /// Creates missing pods and claims until dropped. Retries failures in the next round.
    pub(crate) async fn run(self) {
        loop {
            // Lists pods before claims: a claim that is deleted together with its present pod gets no second pod.
            let pods = self.pods().list(&ListParams::default()).await;
            let usable = self.create_missing_claims().await;
            if let Ok(pods) = pods {
                let phase = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone());
                for pod in &pods {
                    if phase(pod).as_deref() == Some("Failed") && pod.metadata.deletion_timestamp.is_none() {
                        self.delete(&pod.name_any(), false).await;
                    }
                }
                let present: BTreeSet<_> = pods.iter().map(ResourceExt::name_any).collect();
                for pod in self.missing(&present, &usable) {
                    // AlreadyExists means that the response to an earlier request was lost.
                    self.pods().create(&PostParams::default(), &pod).await.ok();
                }
            }
            sleep(PERIOD).await;
        }
    }

    /// Deletes a pod; with `force`, without waiting for its node. Returns false if the API server did not confirm it.
    pub(crate) async fn delete(&self, pod: &str, force: bool) -> bool {
        let mut params = DeleteParams::default();
        if force {
            params = params.grace_period(0);
        }
        let how = if force { "force-delete" } else { "delete" };
        self.observer.note("users", None, format!("{how} pod {pod}"));
        is_deleted(self.pods().delete(pod, &params).await)
    }

    /// Creates missing claims of templates. Returns the claims that exist and are not being deleted.
    async fn create_missing_claims(&self) -> BTreeSet<String> {
        let Ok(present) = self.claims().list(&ListParams::default()).await else {
            return BTreeSet::new();
        };
        let is_usable = |claim: &PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_none();
        let mut claims: BTreeMap<_, _> = present
            .iter()
            .map(|claim| (claim.name_any(), is_usable(claim)))
            .collect();
        for (name, class) in self.templates() {
            if claims.contains_key(&name) {
                continue;
            }
            self.observer.note("users", None, format!("create claim {name}"));
            let claim = serde_json::from_value(json!({
                "metadata": {"name": name},
                "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": class,
                    "resources": {"requests": {"storage": "1Gi"}}},
            }));
            let claim = claim.expect("a claim must be serializable");
            // AlreadyExists means that the response to an earlier request was lost.
            let created = self.claims().create(&PostParams::default(), &claim).await;
            claims.insert(name, created.is_ok());
        }
        claims.retain(|_, usable| *usable);
        claims.into_keys().collect()
    }

    /// Deletes a pod, and before it the claim if it was created from a template, so that the next pod gets an empty volume. Deletes
    /// only bound claims: like the external-provisioner, a restarted provisioner loses track of a volume that it was creating for
    /// a deleted claim.
    pub(crate) async fn delete_with_claim(&self, pod: &str) {
        let claim = self.lock().pods.get(pod).cloned();
        if let Some(Claim { name, class: Some(_) }) = claim
            && let Ok(claim) = self.claims().get(&name).await
            && claim.status.and_then(|status| status.phase).as_deref() == Some("Bound")
        {
            self.observer.note("users", None, format!("delete claim {name}"));
            let params = DeleteParams::default().preconditions(Preconditions {
                uid: claim.metadata.uid,
                resource_version: None,
            });
            // The pod is deleted in any case.
            self.claims().delete(&name, &params).await.ok();
        }
        self.delete(pod, false).await;
    }

    /// Deletes all pods of a node. Returns false if the API server did not confirm it.
    pub(crate) async fn drain(&self, node: &str) -> bool {
        let params = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let Ok(pods) = self.pods().list(&params).await else {
            return false;
        };
        let mut drained = true;
        for pod in pods {
            drained &= self.delete(&pod.name_any(), false).await;
        }
        drained
    }

    /// Sets whether new pods may be placed on a node.
    pub(crate) fn set_in_service(&self, node: &str, in_service: bool) {
        let nodes = &mut self.lock().nodes;
        if in_service {
            nodes.insert(node.to_owned());
        } else {
            nodes.remove(node);
        }
    }

    /// Stops creating pods.
    pub(crate) fn leave(&self) {
        self.lock().pods.clear();
    }

    /// The pods that should run.
    pub(crate) fn wanted(&self) -> Vec<String> {
        self.lock().pods.keys().cloned().collect()
    }

    /// Name and StorageClass of the claims that the users create.
    pub(crate) fn templates(&self) -> Vec<(String, &'static str)> {
        let wanted = self.lock();
        let claims = wanted.pods.values();
        claims
            .filter_map(|claim| Some((claim.name.clone(), claim.class?)))
            .collect()
    }

    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), "default")
    }

    pub(crate) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// The pods to create. Like the StatefulSet controller, creates no pod whose template claim is missing or being
    /// deleted.
    fn missing(&self, present: &BTreeSet<String>, usable: &BTreeSet<String>) -> Vec<Pod> {
        let wanted = &mut *self.lock();
        let nodes: Vec<_> = wanted.nodes.iter().collect();
        let is_missing = |pod: &str, claim: &Claim| {
            !present.contains(pod) && (claim.class.is_none() || usable.contains(&claim.name))
        };
        let missing = wanted.pods.iter().filter(|(pod, claim)| is_missing(pod, claim));
        let mut created = Vec::new();
        for (pod, claim) in missing {
            let Some(node) = wanted.random.choice(&nodes) else {
                continue;
            };
            self.observer
                .note("users", None, format!("create pod {pod} for {node}"));
            created.push(
                serde_json::from_value(json!({
                    "metadata": {"name": pod},
                    "spec": {
                        "containers": [{"name": "app", "image": "pause",
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
                        "nodeSelector": {"kubernetes.io/hostname": node},
                        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim.name}}],
                    },
                }))
                .expect("a pod must be serializable"),
            );
        }
        created
    }

    fn lock(&self) -> MutexGuard<'_, Wanted> {
        lock(&self.wanted)
    }
}
