//! Observes the attach/detach controller of a cluster by watches.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result};
use futures::{StreamExt, pin_mut};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event as WatchEvent, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::schedule::is_of_single_node;

/// Component of the controller's events.
const COMPONENT: &str = "attachdetach-controller";

/// A VolumeAttachment without its UID, versions and times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub node: String,
    pub volume: String,
    pub finalizers: Vec<String>,
    pub is_deleting: bool,
    pub is_attached: bool,
    pub attach_error: Option<String>,
    pub detach_error: Option<String>,
}

/// The observed state of one schedule's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    /// All states of each VolumeAttachment, by name; `None` while it does not exist.
    pub attachments: BTreeMap<String, Vec<Option<Attachment>>>,
    /// The same states in their order over all nodes, by single-node volume.
    pub single_node: BTreeMap<String, Vec<(String, Option<Attachment>)>>,
    /// Volume and device path of the `volumesAttached` of each node.
    pub volumes_attached: BTreeMap<String, BTreeSet<(String, String)>>,
    /// Number of changes of `volumesAttached` by node, volume, and `added` or `removed`.
    pub reports: BTreeMap<(String, String, &'static str), u32>,
    /// Object, type, reason and message of each event of the controller.
    pub events: BTreeSet<[String; 4]>,
    /// Bound claims.
    pub bound: BTreeSet<String>,
}

/// Observes all schedules of a cluster.
pub(crate) struct Observer {
    observed: watch::Sender<Observed>,
    tasks: JoinSet<()>,
}

// === impl Attachment ===

impl From<VolumeAttachment> for Attachment {
    fn from(attachment: VolumeAttachment) -> Self {
        let status = attachment.status.unwrap_or_default();
        Self {
            node: attachment.spec.node_name,
            volume: attachment.spec.source.persistent_volume_name.unwrap_or_default(),
            finalizers: attachment.metadata.finalizers.unwrap_or_default(),
            is_deleting: attachment.metadata.deletion_timestamp.is_some(),
            is_attached: status.attached,
            attach_error: status.attach_error.and_then(|error| error.message),
            detach_error: status.detach_error.and_then(|error| error.message),
        }
    }
}

// === impl Observed ===

impl Observed {
    /// The VolumeAttachments that exist.
    pub(crate) fn present(&self) -> impl Iterator<Item = (&String, &Attachment)> {
        self.attachments
            .iter()
            .filter_map(|(name, states)| Some((name, states.last()?.as_ref()?)))
    }

    /// The same without the changes of `volumesAttached` of these nodes and volumes.
    pub(crate) fn without_reports(&self, volumes: &BTreeSet<(String, String)>) -> Self {
        let mut rest = self.clone();
        rest.reports
            .retain(|(node, volume, _), _| !volumes.contains(&(node.clone(), volume.clone())));
        rest
    }

    /// Whether the node's `volumesAttached` lists the volume.
    pub(crate) fn lists(&self, (node, volume): &(String, String)) -> bool {
        let volumes = self.volumes_attached.get(node).into_iter().flatten();
        volumes.into_iter().any(|(name, _)| name == volume)
    }

    /// The same without this volume in the node's `volumesAttached`.
    pub(crate) fn without(&self, target: &(String, String)) -> Self {
        let (node, volume) = target;
        let mut rest = self.without_reports(&BTreeSet::from([target.clone()]));
        if let Some(volumes) = rest.volumes_attached.get_mut(node) {
            volumes.retain(|(name, _)| name != volume);
        }
        rest
    }

    /// The part whose objects' names begin with `prefix`.
    fn of(&self, prefix: &str) -> Self {
        let is_of = |states: &[Option<Attachment>]| {
            let first = states.iter().flatten().next();
            first.is_some_and(|attachment| attachment.node.starts_with(prefix))
        };
        let mut part = self.clone();
        part.attachments.retain(|_, states| is_of(states));
        part.single_node.retain(|volume, _| volume.starts_with(prefix));
        part.volumes_attached.retain(|node, _| node.starts_with(prefix));
        part.reports.retain(|(node, ..), _| node.starts_with(prefix));
        part.events.retain(|[object, ..]| object.starts_with(prefix));
        part.bound.retain(|claim| claim.starts_with(prefix));
        part
    }

    fn attachment_changed(&mut self, name: String, attachment: Attachment, exists: bool) {
        let volume = attachment.volume.clone();
        let state = exists.then_some(attachment);
        let states = self.attachments.entry(name.clone()).or_default();
        if states.last() == Some(&state) {
            return;
        }
        states.push(state.clone());
        if is_of_single_node(&volume) {
            self.single_node.entry(volume).or_default().push((name, state));
        }
    }

    fn node_changed(&mut self, node: Node) {
        let volumes = node
            .status
            .unwrap_or_default()
            .volumes_attached
            .unwrap_or_default();
        let volumes = volumes
            .into_iter()
            .map(|volume| (volume.name, volume.device_path));
        let name = node.metadata.name.unwrap_or_default();
        let volumes: BTreeSet<_> = volumes.collect();
        let before = self.volumes_attached.insert(name.clone(), volumes.clone());
        let before = before.unwrap_or_default();
        let added = volumes.difference(&before).map(|(volume, _)| (volume, "added"));
        let removed = before.difference(&volumes).map(|(volume, _)| (volume, "removed"));
        for (volume, change) in added.chain(removed) {
            let report = (name.clone(), volume.clone(), change);
            *self.reports.entry(report).or_default() += 1;
        }
    }

    fn event_written(&mut self, event: Event) {
        if event.source.and_then(|source| source.component).as_deref() == Some(COMPONENT) {
            let object = event.involved_object.name.unwrap_or_default();
            let texts = [event.type_, event.reason, event.message].map(Option::unwrap_or_default);
            let [kind, reason, message] = texts;
            self.events
                .insert([object, kind, reason, with_sorted_pods(message)]);
        }
    }

    fn claim_changed(&mut self, claim: PersistentVolumeClaim) {
        if claim.status.and_then(|status| status.phase).as_deref() == Some("Bound") {
            self.bound.insert(claim.metadata.name.unwrap_or_default());
        }
    }
}

// === impl Observer ===

impl Observer {
    /// Starts watches of all kinds.
    pub(crate) fn start(client: &Client) -> Self {
        let observed = watch::Sender::new(Observed::default());
        let mut tasks = JoinSet::new();
        let attachments = Api::<VolumeAttachment>::all(client.clone());
        tasks.spawn(follow(
            attachments,
            observed.clone(),
            |observed, attachment, exists| {
                let name = attachment.name_any();
                observed.attachment_changed(name, attachment.into(), exists);
            },
        ));
        tasks.spawn(follow(
            Api::all(client.clone()),
            observed.clone(),
            |observed, node, _| {
                observed.node_changed(node);
            },
        ));
        tasks.spawn(follow(
            default_namespace(client),
            observed.clone(),
            |observed, event, _| {
                observed.event_written(event);
            },
        ));
        tasks.spawn(follow(
            default_namespace(client),
            observed.clone(),
            |observed, claim, _| {
                observed.claim_changed(claim);
            },
        ));
        Self { observed, tasks }
    }

    /// The state of the schedule `prefix`.
    pub(crate) fn observed(&self, prefix: &str) -> Observed {
        self.observed.borrow().of(prefix)
    }

    /// Waits until the schedule's state is `wanted`; returns the actual state after the timeout.
    ///
    /// # Errors
    /// A watch ended.
    pub(crate) async fn wait(
        &self,
        prefix: &str,
        limit: Duration,
        wanted: impl Fn(&Observed) -> bool,
    ) -> Result<Result<(), Observed>> {
        let mut changes = self.observed.subscribe();
        let reached = changes.wait_for(|observed| wanted(&observed.of(prefix)));
        match timeout(limit, reached).await {
            Ok(reached) => reached.map(drop).map(Ok).context("the watches must not end"),
            Err(_) => Ok(Err(self.observed(prefix))),
        }
    }

    /// Number of running watches.
    pub(crate) fn watches(&self) -> usize {
        self.tasks.len()
    }
}

// === functions ===

/// The message of a multi-attach error names the pods in the order of a Go map, which is random.
fn with_sorted_pods(message: String) -> String {
    const PODS: &str = "is already used by pod(s) ";
    let Some((start, pods)) = message.split_once(PODS) else {
        return message;
    };
    let mut pods: Vec<&str> = pods.split(", ").collect();
    pods.sort_unstable();
    format!("{start}{PODS}{}", pods.join(", "))
}

fn default_namespace<K>(client: &Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client.clone(), "default")
}

/// Reports each state of each object, and whether it exists.
async fn follow<K>(
    api: Api<K>,
    observed: watch::Sender<Observed>,
    report: impl Fn(&mut Observed, K, bool) + Send,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = watcher(api, watcher::Config::default()).default_backoff();
    pin_mut!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(WatchEvent::Apply(object) | WatchEvent::InitApply(object)) => {
                observed.send_modify(|observed| report(observed, object, true));
            }
            Ok(WatchEvent::Delete(object)) => {
                observed.send_modify(|observed| report(observed, object, false));
            }
            Ok(WatchEvent::Init | WatchEvent::InitDone) => {}
            Err(error) => tracing::debug!(%error, "watch failed"),
        }
    }
}
