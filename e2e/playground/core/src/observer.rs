//! Takes snapshots: of the API objects from watches, of the attach/detach controller from its handle in this process, and
//! of array and attacher from the last responses to requests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use csi_mock_driver::admin_api::client::Client as ArrayClient;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{self, Store};
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::pod_mover::ActionStatus;
use super::snapshot::{
    ArrayRow, AttachmentRow, LaneRow, NodeRow, PodRow, Snapshot, WorldRow, explain_command,
};
use crate::narrate::{Names, Narrator, object, without_rpc_prefix};
use csi_e2e::cluster::Cluster;
use csi_e2e::driver::array;
use csi_e2e::fixture::{OUT_OF_SERVICE, SCENARIO_LABEL};
use csi_e2e::scenario::TestEnv;

/// Period of requests to array and attacher.
const POLL: Duration = Duration::from_millis(500);
/// Timeout of these requests.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Follows a test environment. Dropping it ends the tasks.
pub(crate) struct Observer {
    client: Client,
    namespace: String,
    narrator: Narrator,
    status: watch::Receiver<ActionStatus>,
    names: Names,
    driver: String,
    pods: Store<Pod>,
    nodes: Store<Node>,
    attachments: Store<VolumeAttachment>,
    volumes: Store<PersistentVolume>,
    events: Store<Event>,
    array: watch::Receiver<Option<Vec<ArrayRow>>>,
    lanes: watch::Receiver<Option<Vec<LaneRow>>>,
    has_replicas: bool,
    _tasks: JoinSet<()>,
}

/// The displayed part of the attacher's `/statusz`.
#[derive(Deserialize)]
struct Status {
    lanes: Vec<LaneRow>,
}

// === impl Observer ===

impl Observer {
    /// Starts to follow `env`, whose attacher serves HTTP at `attacher`; `None` if there are replicas of it.
    pub(crate) fn new(
        env: &TestEnv<'_>,
        narrator: &Narrator,
        attacher: Option<SocketAddr>,
        status: watch::Receiver<ActionStatus>,
    ) -> Result<Self> {
        let client = env.client();
        let mut tasks = JoinSet::new();
        let mine = watcher::Config::default().labels(&format!("{SCENARIO_LABEL}={}", env.prefix()));
        let all = watcher::Config::default();
        let names = Names::of(env);
        let node_ids: Vec<_> = env.nodes().iter().map(|node| node.node_id().to_owned()).collect();
        let (array_tx, array) = watch::channel(None);
        tasks.spawn(poll(array_tx, {
            let (client, names) = (env.driver.admin()?, names.clone());
            move || read_array(client.clone(), names.clone(), node_ids.clone())
        }));
        let (lanes_tx, lanes) = watch::channel(None);
        if let Some(address) = attacher {
            tasks.spawn(poll(lanes_tx, move || read_lanes(address)));
        }
        Ok(Self {
            client: client.clone(),
            namespace: env.prefix().to_owned(),
            narrator: narrator.clone(),
            status,
            names,
            driver: env.driver.name().to_owned(),
            pods: store(
                Api::namespaced(client.clone(), env.prefix()),
                all.clone(),
                &mut tasks,
            ),
            events: store(
                Api::namespaced(client.clone(), env.prefix()),
                all.clone(),
                &mut tasks,
            ),
            nodes: store(Api::all(client.clone()), mine.clone(), &mut tasks),
            attachments: store(Api::all(client.clone()), all, &mut tasks),
            volumes: store(Api::all(client), mine, &mut tasks),
            array,
            lanes,
            has_replicas: attacher.is_none(),
            _tasks: tasks,
        })
    }

    pub(crate) fn narrator(&self) -> &Narrator {
        &self.narrator
    }

    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// The state now.
    pub(crate) fn snapshot(&self, cluster: &Cluster) -> Snapshot {
        for volume in self.volumes.state() {
            self.names.learn(&volume);
        }
        let (chapter, timeline) = self.narrator.timeline();
        let status = self.status.borrow().clone();
        let pods = sorted(&self.pods, |pod| self.pod(pod));
        Snapshot {
            elapsed: self.narrator.elapsed(),
            chapter,
            is_paused: self.narrator.pace().is_paused(),
            kubeconfig: cluster.admin_kubeconfig().display().to_string(),
            explain_command: explain_command(&pods, &self.namespace),
            names: self.names.about(),
            broken: status
                .broken
                .iter()
                .map(|action| action.label().to_owned())
                .collect(),
            notice: status.notice,
            volumes: sorted(&self.volumes, |volume| self.names.short(&volume.name_any())),
            pods,
            nodes: sorted(&self.nodes, |node| self.node(node)),
            attachments: self.attachments(),
            worlds: self.worlds(cluster),
            lanes: self.lanes.borrow().clone(),
            has_replicas: self.has_replicas,
            array: self.array.borrow().clone(),
            timeline,
        }
    }

    fn pod(&self, pod: &Pod) -> PodRow {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let phase = pod.status.as_ref().and_then(|status| status.phase.clone());
        PodRow {
            name: pod.name_any(),
            node: node.map(|node| self.names.short(node)).unwrap_or_default(),
            phase: match pod.metadata.deletion_timestamp {
                Some(_) => "Terminating".to_owned(),
                None => phase.unwrap_or_default(),
            },
            volumes: object::claims(pod),
            reason: self.reason(pod),
        }
    }

    /// Why a pod does not run: the message of its newest warning.
    fn reason(&self, pod: &Pod) -> String {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Pending") {
            return String::new();
        }
        let events = self.events.state();
        let warnings = events.iter().filter(|event| {
            event.involved_object.uid == pod.metadata.uid && event.type_.as_deref() == Some("Warning")
        });
        let newest = warnings.max_by_key(|event| {
            let version = event.metadata.resource_version.as_deref();
            version.and_then(|version| version.parse::<u64>().ok())
        });
        let message = newest.and_then(|event| event.message.as_deref());
        let message = message.map(without_rpc_prefix).unwrap_or_default();
        self.names.translated(&message)
    }

    fn node(&self, node: &Node) -> NodeRow {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let volumes = |handles: std::collections::BTreeSet<String>| {
            handles.iter().map(|handle| self.names.volume(handle)).collect()
        };
        NodeRow {
            name: self.names.short(&node.name_any()),
            ready: conditions
                .into_iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            out_of_service: taints
                .into_iter()
                .flatten()
                .any(|taint| taint.key == OUT_OF_SERVICE),
            in_use: volumes(object::in_use(node)),
            attached: volumes(object::attached(node)),
        }
    }

    fn attachments(&self) -> Vec<AttachmentRow> {
        let mine = self.attachments.state().into_iter();
        let mine = mine.filter(|attachment| attachment.spec.attacher == self.driver);
        let mut rows: Vec<_> = mine.map(|attachment| self.attachment(&attachment)).collect();
        rows.sort_by(|a, b| (&a.volume, &a.node).cmp(&(&b.volume, &b.node)));
        rows
    }

    fn attachment(&self, attachment: &VolumeAttachment) -> AttachmentRow {
        let status = attachment.status.clone().unwrap_or_default();
        let deleting = attachment.metadata.deletion_timestamp.is_some();
        let error = if deleting {
            status.detach_error
        } else {
            status.attach_error
        };
        let volume = attachment.spec.source.persistent_volume_name.as_deref();
        AttachmentRow {
            name: self.names.short(&attachment.name_any()),
            volume: self.names.short(volume.unwrap_or_default()),
            node: self.names.short(&attachment.spec.node_name),
            attached: status.attached,
            deleting,
            error: error
                .and_then(|error| error.message)
                .map(|error| self.names.translated(&without_rpc_prefix(&error)))
                .unwrap_or_default(),
        }
    }

    fn worlds(&self, cluster: &Cluster) -> Option<Vec<WorldRow>> {
        let volumes = cluster.attach_detach_volumes()?;
        let nodes = self.nodes.state();
        let in_use: BTreeSet<(String, String)> = nodes
            .iter()
            .flat_map(|node| {
                object::in_use(node)
                    .into_iter()
                    .map(|handle| (node.name_any(), handle))
            })
            .collect();
        let row =
            |((volume, node), view): ((String, String), embedded_cluster::attach_detach::VolumeView)| {
                let handle = volume
                    .rsplit_once('^')
                    .map_or(volume.as_str(), |(_, handle)| handle);
                let pods = view.desired_by.iter();
                WorldRow {
                    volume: self.names.volume(handle),
                    node: self.names.short(&node),
                    desired_by: pods
                        .map(|pod| {
                            pod.rsplit_once('/')
                                .map_or(pod.as_str(), |(_, name)| name)
                                .to_owned()
                        })
                        .collect(),
                    actual: view.actual,
                    // The controller assumes it of a volume until the node says otherwise.
                    in_use: view.mounted_by_node && in_use.contains(&(node.clone(), handle.to_owned())),
                    pending: view.operation_pending,
                }
            };
        let mut rows: Vec<_> = volumes.into_iter().map(row).collect();
        rows.sort_by(|a, b| (&a.volume, &a.node).cmp(&(&b.volume, &b.node)));
        Some(rows)
    }
}

// === functions ===

/// The rows of a store in the order of their objects' names.
fn sorted<K, R>(store: &Store<K>, row: impl Fn(&K) -> R) -> Vec<R>
where
    K: Resource<DynamicType = ()> + Clone,
{
    let by_name: BTreeMap<_, _> = store
        .state()
        .into_iter()
        .map(|object| (object.name_any(), object))
        .collect();
    by_name.values().map(|object| row(object)).collect()
}

/// Follows a watch.
fn store<K>(api: Api<K>, config: watcher::Config, tasks: &mut JoinSet<()>) -> Store<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Eq + Hash,
{
    let (reader, writer) = reflector::store();
    tasks.spawn(async move {
        let mut events = watcher(api, config).default_backoff().reflect(writer).boxed();
        while let Some(event) = events.next().await {
            if let Err(error) = event {
                tracing::debug!(%error, "a watch cannot be read");
            }
        }
    });
    reader
}

/// Polls `read` and stores each response; `None` if it failed.
async fn poll<T, F>(result_tx: watch::Sender<Option<T>>, read: impl Fn() -> F + Send)
where
    F: Future<Output = Result<T>> + Send,
{
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let read = timeout(RESPONSE_TIMEOUT, read()).await;
        result_tx.send_replace(read.ok().and_then(Result::ok));
    }
}

async fn read_array(client: ArrayClient, names: Names, node_ids: Vec<String>) -> Result<Vec<ArrayRow>> {
    let published = array::published(&client).await?;
    let row = |node_id: String| {
        let volumes = published.iter().filter(|(_, nodes)| nodes.contains(&node_id));
        ArrayRow {
            volumes: volumes.map(|(handle, _)| names.volume(handle)).collect(),
            node: names.node(&node_id),
        }
    };
    Ok(node_ids.into_iter().map(row).collect())
}

async fn read_lanes(address: SocketAddr) -> Result<Vec<LaneRow>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = "GET /statusz?format=json HTTP/1.1\r\nHost: attacher\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (_, body) = response
        .split_once("\r\n\r\n")
        .context("the response has no body")?;
    let status: Status = serde_json::from_str(body)?;
    Ok(status.lanes)
}
