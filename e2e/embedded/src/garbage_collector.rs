//! The garbage collector of kube-controller-manager: deletes objects whose owners are gone. The API server refuses deletions in the
//! foreground and orphaning.
//!
//! As upstream, it reads an owner before it deletes a dependent: informers may lack a new owner. Owners of kinds that the API
//! server does not have are never absent.

mod graph;
mod monitors;

use std::time::Duration;

use futures::FutureExt;
use futures::stream::{BoxStream, SelectAll, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::api_error::ignore_not_found;
use crate::informers::Informers;
use crate::workqueue::WorkQueue;
use graph::{Event, Graph, Node, Uid};
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
    queue: WorkQueue<Uid>,
}

/// The state of an owner according to the API server.
enum OwnerState {
    Present,
    Absent,
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
                    queue: WorkQueue::new(FIRST_RETRY, MAX_RETRY),
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
                    Ok(()) => self.queue.forget(&uid),
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

    /// Deletes the object if none of its owners exists (`attemptToDeleteItem`).
    async fn sync(&self, uid: &str) -> kube::Result<()> {
        let Some(node) = self.graph.get(uid) else {
            return Ok(());
        };
        if node.owners.iter().all(|owner| self.has_owner(node, owner)) {
            return Ok(());
        }
        let Some(latest) = self.read(node).await? else {
            return Ok(());
        };
        let owners = latest.owner_references.clone().unwrap_or_default();
        let mut absent = Vec::new();
        for owner in &owners {
            match self.state_of_owner(node, owner).await? {
                OwnerState::Unresolvable => return Ok(()),
                OwnerState::Present => {}
                OwnerState::Absent => absent.push(owner.uid.clone()),
            }
        }
        if absent.is_empty() {
            return Ok(());
        }
        if absent.len() < owners.len() {
            return self.remove_owners(node, &absent).await;
        }
        let mut params = DeleteParams::background();
        params.preconditions = Some(Preconditions {
            uid: Some(node.uid.clone()),
            resource_version: latest.resource_version.clone(),
        });
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
        (kind.has)(namespace, &owner.name, &owner.uid)
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
        let exists = found.is_some_and(|found| found.metadata.uid.as_ref() == Some(&owner.uid));
        Ok(if exists {
            OwnerState::Present
        } else {
            OwnerState::Absent
        })
    }

    async fn remove_owners(&self, node: &Node, owners: &[Uid]) -> kube::Result<()> {
        let deletions: Vec<Value> = owners
            .iter()
            .map(|uid| json!({ "$patch": "delete", "uid": uid }))
            .collect();
        let patch = json!({ "metadata": { "uid": node.uid, "ownerReferences": deletions } });
        let patched = self
            .api(node)
            .patch(&node.name, &PatchParams::default(), &Patch::Strategic(patch))
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
