//! The garbage collector of kube-controller-manager: deletes objects whose owners are gone, and handles the finalizers
//! `foregroundDeletion` and `orphan`.
//!
//! As upstream, it reads an owner before it deletes a dependent: informers may lack a new owner. Owners of kinds that the API
//! server does not have are never absent.

mod graph;
mod monitors;

use std::time::Duration;

use futures::FutureExt;
use futures::stream::{BoxStream, SelectAll, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::api_error::ignore_not_found;
use crate::informer::has_finalizer;
use crate::informers::Informers;
use crate::key_queue::KeyQueue;
use graph::{Deletion, Event, FOREGROUND, Graph, Node, ORPHAN, Uid};
use monitors::{Kind, Monitors, OtherInformers};

const FIRST_RETRY: Duration = Duration::from_millis(100);
const MAX_RETRY: Duration = Duration::from_secs(30);

/// The garbage collector.
pub(crate) struct GarbageCollector {
    pub client: Client,
    pub informers: Informers,
}

/// The collector while it runs.
struct Collector {
    client: Client,
    kinds: Vec<Kind>,
    graph: Graph,
    queue: KeyQueue<Uid>,
}

/// The state of an owner according to the API server.
enum OwnerState {
    Present,
    Absent,
    DeletingDependents,
    /// Its kind is not served, or it is a namespaced owner of a cluster-scoped object.
    Unresolvable,
}

// === impl GarbageCollector ===

impl GarbageCollector {
    /// Runs until the future is dropped. The call subscribes, so that the collector misses no change.
    pub(crate) fn run(self) -> impl Future<Output = ()> + Send + 'static {
        let Self { client, informers } = self;
        let others = OtherInformers::default();
        let monitors = Monitors::new(&informers, &others);
        async move {
            let syncing = async {
                informers.wait_for_sync().await;
                others.wait_for_sync().await;
                let collector = Collector {
                    client: client.clone(),
                    kinds: monitors.kinds,
                    graph: Graph::default(),
                    queue: KeyQueue::new(FIRST_RETRY, MAX_RETRY),
                };
                collector.run(monitors.events).await;
            };
            futures::join!(others.clone().run(&client), syncing);
        }
    }
}

// === impl Collector ===

impl Collector {
    async fn run(mut self, mut events: SelectAll<BoxStream<'static, Vec<Event>>>) {
        loop {
            let due = self.queue.next_due();
            tokio::select! {
                biased;
                Some(events) = events.next() => self.apply(events),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {}
            }
            while let Some(Some(events)) = events.next().now_or_never() {
                self.apply(events);
            }
            while let Some(uid) = self.queue.pop(Instant::now()) {
                match self.sync(&uid).await {
                    Ok(affected) => {
                        self.queue.forget(&uid);
                        affected.into_iter().for_each(|uid| self.queue.add(uid));
                    }
                    Err(error) => {
                        tracing::debug!(uid, %error, "object was not garbage-collected");
                        self.queue.add_rate_limited(uid, Instant::now());
                    }
                }
            }
        }
    }

    fn apply(&mut self, events: Vec<Event>) {
        for event in events {
            for uid in self.graph.apply(event) {
                self.queue.add(uid);
            }
        }
    }

    /// Returns further objects to sync.
    async fn sync(&self, uid: &str) -> kube::Result<Vec<Uid>> {
        let Some(node) = self.graph.get(uid) else {
            return Ok(Vec::new());
        };
        match node.deletion {
            Deletion::Terminating => {}
            Deletion::NotStarted => self.attempt_to_delete(node).await?,
            Deletion::Orphan => {
                for dependent in self.graph.dependents_of(uid) {
                    self.remove_owners(dependent, &[uid.to_owned()]).await?;
                }
                self.remove_finalizer(node, ORPHAN).await?;
            }
            Deletion::Foreground => {
                let blocking: Vec<&Node> = self.graph.blocking_dependents(uid).collect();
                if blocking.is_empty() {
                    self.remove_finalizer(node, FOREGROUND).await?;
                }
                let to_delete = blocking
                    .into_iter()
                    .filter(|node| node.deletion == Deletion::NotStarted);
                return Ok(to_delete.map(|node| node.uid.clone()).collect());
            }
        }
        Ok(Vec::new())
    }

    /// Deletes the object if none of its owners needs it (`attemptToDeleteItem`).
    async fn attempt_to_delete(&self, node: &Node) -> kube::Result<()> {
        if node.owners.iter().all(|owner| self.has_owner(node, owner)) {
            return Ok(());
        }
        let Some(latest) = self.read(node).await? else {
            return Ok(());
        };
        let owners = latest.owner_references.clone().unwrap_or_default();
        let (mut present, mut absent, mut waiting) = (0, Vec::new(), Vec::new());
        for owner in &owners {
            match self.state_of_owner(node, owner).await? {
                OwnerState::Unresolvable => return Ok(()),
                OwnerState::Present => present += 1,
                OwnerState::Absent => absent.push(owner.uid.clone()),
                OwnerState::DeletingDependents => waiting.push(owner.uid.clone()),
            }
        }
        if present == owners.len() {
            return Ok(());
        }
        if present > 0 {
            absent.append(&mut waiting);
            return self.remove_owners(node, &absent).await;
        }
        let mut dependents = self.graph.dependents_of(&node.uid).peekable();
        let policy = if !waiting.is_empty() && dependents.peek().is_some() {
            if dependents.any(|dependent| dependent.deletion == Deletion::Foreground) {
                // A cycle: each would wait for the other.
                self.unblock_owners(node, &owners).await?;
            }
            PropagationPolicy::Foreground
        } else if has_finalizer(&latest, ORPHAN) {
            PropagationPolicy::Orphan
        } else if has_finalizer(&latest, FOREGROUND) {
            PropagationPolicy::Foreground
        } else {
            PropagationPolicy::Background
        };
        let params = DeleteParams {
            propagation_policy: Some(policy),
            preconditions: Some(Preconditions {
                uid: Some(node.uid.clone()),
                resource_version: latest.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        ignore_not_found(self.api(node).delete(&node.name, &params).await)
    }

    /// Whether the informers show an owner that keeps the object.
    fn has_owner(&self, node: &Node, owner: &OwnerReference) -> bool {
        let Some(kind) = self.kind_of(owner) else {
            return false;
        };
        let namespace = if kind.namespaced {
            node.namespace.as_str()
        } else {
            ""
        };
        (kind.has)(namespace, &owner.name, &owner.uid) && !self.graph.is_deleting_dependents(&owner.uid)
    }

    async fn state_of_owner(&self, node: &Node, owner: &OwnerReference) -> kube::Result<OwnerState> {
        let Some(kind) = self.kind_of(owner) else {
            return Ok(OwnerState::Unresolvable);
        };
        if kind.namespaced && node.namespace.is_empty() {
            return Ok(OwnerState::Unresolvable);
        }
        let found = api(&self.client, kind, &node.namespace)
            .get_metadata_opt(&owner.name)
            .await?;
        let Some(found) = found.filter(|found| found.metadata.uid.as_ref() == Some(&owner.uid)) else {
            return Ok(OwnerState::Absent);
        };
        let meta = &found.metadata;
        let is_deleting_dependents = meta.deletion_timestamp.is_some() && has_finalizer(meta, FOREGROUND);
        Ok(if is_deleting_dependents {
            OwnerState::DeletingDependents
        } else {
            OwnerState::Present
        })
    }

    async fn remove_owners(&self, node: &Node, owners: &[Uid]) -> kube::Result<()> {
        let deletions: Vec<Value> = owners
            .iter()
            .map(|uid| json!({ "$patch": "delete", "uid": uid }))
            .collect();
        self.patch_owners(node, deletions).await
    }

    async fn unblock_owners(&self, node: &Node, owners: &[OwnerReference]) -> kube::Result<()> {
        let unblocked: Vec<Value> = owners
            .iter()
            .map(|owner| json!({ "uid": owner.uid, "blockOwnerDeletion": false }))
            .collect();
        self.patch_owners(node, unblocked).await
    }

    async fn patch_owners(&self, node: &Node, owners: Vec<Value>) -> kube::Result<()> {
        let patch = json!({ "metadata": { "uid": node.uid, "ownerReferences": owners } });
        let patch = Patch::Strategic(patch);
        let patched = self
            .api(node)
            .patch(&node.name, &PatchParams::default(), &patch)
            .await;
        ignore_not_found(patched)
    }

    async fn remove_finalizer(&self, node: &Node, finalizer: &str) -> kube::Result<()> {
        let Some(latest) = self.read(node).await? else {
            return Ok(());
        };
        let mut finalizers = latest.finalizers.unwrap_or_default();
        finalizers.retain(|found| found != finalizer);
        let patch = json!({
            "metadata": { "uid": node.uid, "resourceVersion": latest.resource_version, "finalizers": finalizers },
        });
        let patch = Patch::Merge(patch);
        let patched = self
            .api(node)
            .patch(&node.name, &PatchParams::default(), &patch)
            .await;
        ignore_not_found(patched)
    }

    /// The newest metadata of an object, unless it was deleted.
    async fn read(&self, node: &Node) -> kube::Result<Option<ObjectMeta>> {
        let found = self.api(node).get_metadata_opt(&node.name).await?;
        let meta = found.map(|found| found.metadata);
        Ok(meta.filter(|meta| meta.uid.as_ref() == Some(&node.uid)))
    }

    fn kind_of(&self, owner: &OwnerReference) -> Option<&Kind> {
        let mut kinds = self.kinds.iter();
        kinds.find(|kind| kind.resource.kind == owner.kind && kind.resource.api_version == owner.api_version)
    }

    fn api(&self, node: &Node) -> Api<DynamicObject> {
        let kind = self.kinds.get(node.kind).expect("a node's kind must exist");
        api(&self.client, kind, &node.namespace)
    }
}

// === functions ===

fn api(client: &Client, kind: &Kind, namespace: &str) -> Api<DynamicObject> {
    if kind.namespaced {
        Api::namespaced_with(client.clone(), namespace, &kind.resource)
    } else {
        Api::all_with(client.clone(), &kind.resource)
    }
}

#[cfg(test)]
mod tests;
