//! The acting half of a simulated node: watches its pods and its own node, carries out what the
//! [`VolumeManager`] decides, and keeps the heartbeat going.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, Stream, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tokio_util::sync::CancellationToken;

use super::api::{FIRST_PAUSE, NodeApi, retry_until_ok};
use super::csi::CsiPlugin;
use super::volume_manager::{Action, PodKey, PodUid, Report, UniqueName, VolumeKey, VolumeManager};

/// How often lease and status are renewed: kubelet's default for the lease; it looks at the status as often
/// and by default writes it every five minutes if nothing changed.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// One node's kubelet.
pub(super) struct Kubelet {
    api: NodeApi,
    /// The node's driver; without one nothing is mounted.
    csi: Option<CsiPlugin>,
    manager: VolumeManager,
    /// The volumes of each pod.
    volumes: BTreeMap<PodUid, Vec<VolumeKey>>,
    /// The pods to which a volume was published.
    published: BTreeMap<UniqueName, BTreeSet<PodUid>>,
    /// Pods the manager knows; after a relist, the ones not listed are gone.
    known: BTreeSet<String>,
    listed: BTreeSet<String>,
    /// Newest version of the own Node taken into account: an answer to a write can overtake the watch.
    node_version: u64,
    running: FuturesUnordered<BoxFuture<'static, Outcome>>,
}

/// What came of something the kubelet did.
enum Outcome {
    /// News for the volume manager.
    Report(Report),
    /// `volumesInUse` was stored, and this is the node as it was then.
    InUseStored(BTreeSet<UniqueName>, Box<Node>),
    /// No result.
    Nothing,
}

// === impl Kubelet ===

impl Kubelet {
    pub(super) fn new(api: NodeApi, csi: Option<CsiPlugin>) -> Self {
        Self {
            api,
            csi,
            manager: VolumeManager::default(),
            volumes: BTreeMap::new(),
            published: BTreeMap::new(),
            known: BTreeSet::new(),
            listed: BTreeSet::new(),
            node_version: 0,
            running: FuturesUnordered::new(),
        }
    }

    /// Lives until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut pods = self.watch_pods().boxed();
        let mut node = self.watch_node().boxed();
        let ready_since = Timestamp::now();
        let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            for action in self.manager.reconcile() {
                let doing = self.execute(action);
                self.running.push(doing);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(outcome) = self.running.next(), if !self.running.is_empty() => self.handle(outcome),
                Some(event) = pods.next() => self.on_pod_event(event),
                Some(event) = node.next() => self.on_node_event(event),
                _ = heartbeat.tick() => {
                    let api = self.api.clone();
                    self.running.push(async move {
                        api.renew_heartbeat(ready_since).await;
                        Outcome::Nothing
                    }.boxed());
                }
            }
        }
    }

    fn watch_pods(&self) -> impl Stream<Item = watcher::Result<Event<Pod>>> + use<> {
        let config = watcher::Config::default().fields(&format!("spec.nodeName={}", self.api.node()));
        watcher(Api::<Pod>::all(self.api.client()), config).default_backoff()
    }

    fn watch_node(&self) -> impl Stream<Item = watcher::Result<Event<Node>>> + use<> {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", self.api.node()));
        watcher(Api::<Node>::all(self.api.client()), config).default_backoff()
    }

    fn on_pod_event(&mut self, event: watcher::Result<Event<Pod>>) {
        match event {
            Ok(Event::Init) => self.listed.clear(),
            Ok(Event::InitApply(pod)) => {
                self.listed.extend(pod.metadata.uid.clone());
                self.pod_exists(pod);
            }
            Ok(Event::Apply(pod)) => self.pod_exists(pod),
            Ok(Event::Delete(pod)) => self.pod_gone(&pod.metadata.uid.unwrap_or_default()),
            Ok(Event::InitDone) => {
                let gone: Vec<_> = self.known.difference(&self.listed).cloned().collect();
                gone.iter().for_each(|uid| self.pod_gone(uid));
            }
            Err(error) => tracing::warn!(node = self.api.node(), %error, "pod watch failed"),
        }
    }

    fn pod_exists(&mut self, pod: Pod) {
        let Some(uid) = pod.metadata.uid else { return };
        let phase = pod.status.and_then(|status| status.phase).unwrap_or_default();
        let is_new = !self.known.contains(&uid);
        if is_new && (phase == "Succeeded" || phase == "Failed") {
            return;
        }
        if is_new {
            self.known.insert(uid.clone());
            self.manager.apply(Report::Assigned(PodKey {
                uid: uid.clone(),
                namespace: pod.metadata.namespace.unwrap_or_default(),
                name: pod.metadata.name.unwrap_or_default(),
            }));
        }
        if pod.metadata.deletion_timestamp.is_some() {
            self.manager.apply(Report::Deleting(uid));
        }
    }

    fn pod_gone(&mut self, uid: &str) {
        self.volumes.remove(uid);
        if self.known.remove(uid) {
            self.manager.apply(Report::Gone(uid.to_owned()));
        }
    }

    fn on_node_event(&mut self, event: watcher::Result<Event<Node>>) {
        match event {
            Ok(Event::InitApply(node) | Event::Apply(node)) => self.on_node(&node),
            Ok(Event::Init | Event::InitDone | Event::Delete(_)) => {}
            Err(error) => tracing::warn!(node = self.api.node(), %error, "node watch failed"),
        }
    }

    fn on_node(&mut self, node: &Node) {
        let version = node
            .metadata
            .resource_version
            .as_deref()
            .and_then(|version| version.parse().ok());
        let version = version.unwrap_or(u64::MAX);
        if version < self.node_version {
            return;
        }
        self.node_version = version;
        let attached = node
            .status
            .as_ref()
            .and_then(|status| status.volumes_attached.as_ref());
        let attached = attached
            .into_iter()
            .flatten()
            .map(|volume| volume.name.clone())
            .collect();
        self.manager.apply(Report::Attached(attached));
    }

    fn handle(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Report(report) => {
                if let Report::Resolved(uid, volumes) = &report {
                    self.volumes.insert(uid.clone(), volumes.clone());
                }
                self.manager.apply(report);
            }
            Outcome::InUseStored(stored, node) => {
                // The node as it was when the report was stored shows what the controller has attached
                // knowing that we use it; older pictures from the watch do not count any more.
                self.on_node(&node);
                self.manager.apply(Report::InUseStored(stored));
            }
            Outcome::Nothing => {}
        }
    }

    fn execute(&mut self, action: Action) -> BoxFuture<'static, Outcome> {
        let (api, csi) = (self.api.clone(), self.csi.clone());
        match action {
            Action::Resolve(pod) => async move {
                let volumes = api.volumes_of(&pod).await;
                Outcome::Report(Report::Resolved(pod.uid, volumes))
            }
            .boxed(),
            Action::StoreInUse(names) => async move {
                let node = api.store_in_use(&names).await;
                Outcome::InUseStored(names, Box::new(node))
            }
            .boxed(),
            Action::Mount(volume) => mount_device(api, csi, volume).boxed(),
            Action::Start(pod) => {
                let volumes = self.volumes.get(&pod.uid).cloned().unwrap_or_default();
                for volume in &volumes {
                    let pods = self.published.entry(volume.unique_name.clone()).or_default();
                    pods.insert(pod.uid.clone());
                }
                start(api, csi, pod, volumes).boxed()
            }
            Action::Stop(pod) => {
                let volumes = self.volumes.get(&pod.uid).cloned().unwrap_or_default();
                for volume in &volumes {
                    if let Some(pods) = self.published.get_mut(&volume.unique_name) {
                        pods.remove(&pod.uid);
                    }
                }
                stop(api, csi, pod, volumes).boxed()
            }
            Action::Unmount(volume) => {
                // Pods whose objects were removed before the kubelet stopped them.
                let orphans = self.published.remove(&volume.unique_name).unwrap_or_default();
                unmount_device(csi, volume, orphans).boxed()
            }
            Action::Finish(pod) => async move {
                api.remove_pod(&pod).await;
                Outcome::Nothing
            }
            .boxed(),
        }
    }
}

// === functions ===

async fn mount_device(api: NodeApi, csi: Option<CsiPlugin>, volume: VolumeKey) -> Outcome {
    let mounted = async {
        let context = api.publish_context(&volume).await?;
        match &csi {
            Some(csi) => csi.stage(&volume, context).await,
            None => Ok(()),
        }
    };
    Outcome::Report(match mounted.await {
        Ok(()) => Report::Mounted(volume.unique_name),
        Err(error) => {
            tracing::warn!(node = api.node(), volume = volume.handle, error = %format!("{error:#}"), "mount failed");
            sleep(FIRST_PAUSE).await;
            Report::MountFailed(volume.unique_name)
        }
    })
}

async fn start(api: NodeApi, csi: Option<CsiPlugin>, pod: PodKey, volumes: Vec<VolumeKey>) -> Outcome {
    if let Some(csi) = &csi {
        for volume in &volumes {
            retry_until_ok("publish a volume to the pod", || async {
                let context = api.publish_context(volume).await?;
                csi.publish(&pod.uid, volume, context).await
            })
            .await;
        }
    }
    api.report_running(&pod).await;
    Outcome::Report(Report::Started(pod.uid))
}

async fn stop(api: NodeApi, csi: Option<CsiPlugin>, pod: PodKey, volumes: Vec<VolumeKey>) -> Outcome {
    api.report_stopped(&pod).await;
    if let Some(csi) = &csi {
        for volume in &volumes {
            retry_until_ok("unpublish a volume of the pod", || {
                csi.unpublish(&pod.uid, volume)
            })
            .await;
        }
    }
    Outcome::Report(Report::Stopped(pod.uid))
}

async fn unmount_device(csi: Option<CsiPlugin>, volume: VolumeKey, orphans: BTreeSet<PodUid>) -> Outcome {
    if let Some(csi) = &csi {
        for pod in &orphans {
            retry_until_ok("unpublish an orphaned volume", || csi.unpublish(pod, &volume)).await;
        }
        retry_until_ok("unstage the volume", || csi.unstage(&volume)).await;
    }
    Outcome::Report(Report::Unmounted(volume.unique_name))
}
