//! Volumes that must stay attached while the attacher is replaced: two pods write continuously, and watches record all states
//! of VolumeAttachments and `status.volumesAttached`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use csi_e2e::document::Shell;
use csi_e2e::driver::journal::{Line, PUBLISH, UNPUBLISH, calls};
use csi_e2e::invariant::watch_recorder::WatchRecorder;
use csi_e2e::nodes::{DRIVER_NAMESPACE, NODES};
use csi_mock_driver::admin_api::client::Calls;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerStatus, Node, PersistentVolume};
use kube::api::PostParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::env::{Env, PodSpec, STEP};

/// Appends the time to a file on the volume each second, until a write fails.
const APPEND: &str = "while date +%s >>/data/log; do sleep 1; done &";
/// Longer than a pause of a process on a busy machine, shorter than a detach and a new attach.
const GAP: Duration = Duration::from_secs(10);
/// The Deployment of `deploy/` with driver, attacher and the other sidecars.
const DEPLOYED: &str = "csi-attacher";
/// Directory of the driver's socket on each node while [`DriverAlone`] runs.
pub(crate) const SHARED_SOCKET_DIR: &str = "/var/lib/csi-mock-driver/csi";

/// The location of the driver's journal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Journal {
    /// The admin API of the driver of `deploy/`.
    Deployed,
    /// A file on a node, to which all processes of the driver append.
    File(&'static str, &'static str),
}

/// Two attached volumes, pods that write to them, and a record of their states.
pub(crate) struct AttachedVolumes {
    volumes: Vec<Volume>,
    journal: Journal,
    calls: Counts,
    attachments: WatchRecorder,
    nodes: NodeRecorder,
}

/// Numbers of calls by volume and method.
type Counts = BTreeMap<(String, &'static str), usize>;

struct Volume {
    pod: String,
    node: &'static str,
    persistent_volume: String,
    handle: String,
    /// Its name in `status.volumesAttached`.
    name: String,
    containers: Vec<ContainerStatus>,
}

/// Records `status.volumesAttached` of all nodes until dropped.
struct NodeRecorder {
    states: watch::Receiver<Vec<(String, BTreeSet<String>)>>,
    task: JoinSet<()>,
}

/// The driver of `deploy/` without its attacher, with its socket in [`SHARED_SOCKET_DIR`].
pub(crate) struct DriverAlone(Deployment);

// === impl AttachedVolumes ===

impl AttachedVolumes {
    /// Creates a volume of `class` on each of these nodes, and starts recording.
    pub(crate) async fn start(
        env: &Env<'_>,
        driver: &str,
        class: &str,
        nodes: [&'static str; 2],
        journal: Journal,
    ) -> Result<Self> {
        let mut volumes = Vec::new();
        for (number, node) in nodes.into_iter().enumerate() {
            let (claim, pod) = (format!("kept-{number}"), format!("writer-{number}"));
            env.claim(&claim, class, "Filesystem").await?;
            env.run_pod(&PodSpec::new(&pod, APPEND).on(node).claim(&claim))
                .await?;
            let persistent_volume = env.volume_of(&claim).await?;
            let found = Api::<PersistentVolume>::all(env.nodes.client())
                .get(&persistent_volume)
                .await?;
            let source = found.spec.and_then(|spec| spec.csi);
            let handle = source.context("a volume must be a CSI volume")?.volume_handle;
            volumes.push(Volume {
                name: format!("kubernetes.io/csi/{driver}^{handle}"),
                containers: containers(env, &pod).await?,
                pod,
                node,
                persistent_volume,
                handle,
            });
        }
        let calls = journal.counts(env, &volumes).await?;
        let is_published = |volume: &Volume| calls[&(volume.handle.clone(), PUBLISH)] > 0;
        ensure!(
            volumes.iter().all(is_published),
            "the driver has not published the volumes: {calls:?}"
        );
        Ok(Self {
            volumes,
            journal,
            calls,
            attachments: WatchRecorder::start(env.nodes.client(), driver, "default").await?,
            nodes: NodeRecorder::start(env).await?,
        })
    }

    /// Checks that the volumes stayed attached and that the driver got no call for them, and deletes the pods.
    pub(crate) async fn end(self, env: &Env<'_>, shell: &Shell) -> Result<()> {
        let seen = self.attachments.end().await?;
        for volume in &self.volumes {
            let name = &volume.persistent_volume;
            let states = seen
                .iter()
                .filter(|event| event.object.spec.source.persistent_volume_name.as_ref() == Some(name));
            let states: Vec<_> = states.collect();
            let uids: BTreeSet<_> = states.iter().map(|event| event.object.uid()).collect();
            ensure!(uids.len() == 1, "{name} had the VolumeAttachments {states:?}");
            for event in states {
                let attachment = &event.object;
                let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
                ensure!(
                    attached && !event.gone && attachment.metadata.deletion_timestamp.is_none(),
                    "the volume was detached: {event:?}"
                );
            }
        }
        for (node, attached) in self.nodes.end()? {
            for volume in self.volumes.iter().filter(|volume| volume.node == node) {
                ensure!(
                    attached.contains(&volume.name),
                    "status.volumesAttached of {node} was {attached:?} without {}",
                    volume.name
                );
            }
        }
        let calls = self.journal.counts(env, &self.volumes).await?;
        ensure!(
            calls == self.calls,
            "the driver was called: {:?} became {calls:?}",
            self.calls
        );
        for volume in &self.volumes {
            volume.check_pod(env, shell).await?;
            env.delete_pod(&volume.pod).await?;
        }
        Ok(())
    }
}

// === impl Volume ===

impl Volume {
    /// Checks that the pod has never stopped writing.
    async fn check_pod(&self, env: &Env<'_>, shell: &Shell) -> Result<()> {
        let (namespace, pod) = (&env.namespace, &self.pod);
        let log = shell
            .run(&format!("kubectl -n {namespace} exec {pod} -- cat /data/log"))
            .await?;
        let times = log.lines().map(|line| line.trim().parse::<u64>());
        let mut times = times.collect::<Result<Vec<_>, _>>().context("read the times")?;
        times.push(u64::try_from(Timestamp::now().as_second())?);
        let gaps = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let longest = Duration::from_secs(gaps.max().unwrap_or_default());
        ensure!(longest <= GAP, "{pod} did not write for {longest:?}");
        let containers = containers(env, pod).await?;
        ensure!(
            containers == self.containers,
            "{pod} was restarted: {:?} became {containers:?}",
            self.containers
        );
        Ok(())
    }
}

async fn containers(env: &Env<'_>, pod: &str) -> Result<Vec<ContainerStatus>> {
    let status = env.pods().get(pod).await?.status;
    let containers = status.and_then(|status| status.container_statuses);
    containers.context("a running pod must have container statuses")
}

// === impl Journal ===

impl Journal {
    async fn counts(self, env: &Env<'_>, volumes: &[Volume]) -> Result<Counts> {
        let mut counts = Counts::new();
        let calls = match self {
            Self::Deployed => None,
            Self::File(node, path) => {
                let text = env.nodes.node(node)?.command(&["cat", path]).await?;
                let lines = text.lines().map(serde_json::from_str::<Line>);
                let lines = lines
                    .collect::<Result<Vec<_>, _>>()
                    .context("understand the journal")?;
                Some(calls(&lines, &BTreeSet::new()))
            }
        };
        for volume in volumes {
            for method in [PUBLISH, UNPUBLISH] {
                let count = match &calls {
                    None => {
                        let calls = Calls::of(method).volume(&volume.handle);
                        let page = env.nodes.array()?.journal(&calls).await;
                        page.context("read the driver's journal")?.items.len()
                    }
                    Some(calls) => calls
                        .iter()
                        .filter(|call| call.method == method && call.volume == volume.handle)
                        .count(),
                };
                counts.insert((volume.handle.clone(), method), count);
            }
        }
        Ok(counts)
    }
}

// === impl NodeRecorder ===

impl NodeRecorder {
    async fn start(env: &Env<'_>) -> Result<Self> {
        let (states_tx, mut states) = watch::channel(Vec::new());
        let nodes = Api::<Node>::all(env.nodes.client());
        let mut task = JoinSet::new();
        task.spawn(async move {
            let nodes = watcher(nodes, watcher::Config::default());
            let mut nodes = nodes.default_backoff().applied_objects().boxed();
            while let Some(node) = nodes.next().await {
                // The watcher lists again after an error.
                let Ok(node) = node else { continue };
                let name = node.name_any();
                let attached = node.status.and_then(|status| status.volumes_attached);
                let attached = attached.into_iter().flatten().map(|volume| volume.name);
                states_tx.send_modify(|states| states.push((name, attached.collect())));
            }
        });
        let is_listed =
            |seen: &Vec<(String, _)>| NODES.iter().all(|node| seen.iter().any(|(name, _)| name == node));
        tokio::time::timeout(STEP, states.wait_for(is_listed))
            .await
            .context("the first list of nodes took too long")?
            .context("the watch of nodes ended")?;
        Ok(Self { states, task })
    }

    fn end(mut self) -> Result<Vec<(String, BTreeSet<String>)>> {
        if let Some(ended) = self.task.try_join_next() {
            bail!("the watch of nodes ended: {ended:?}");
        }
        Ok(self.states.borrow().clone())
    }
}

// === impl DriverAlone ===

impl DriverAlone {
    pub(crate) async fn deploy(env: &Env<'_>, shell: &Shell) -> Result<Self> {
        let deployments = deployments(env);
        let deployed = deployments.get(DEPLOYED).await?;
        let mut changed = json!(deployed);
        let pod = &mut changed["spec"]["template"]["spec"];
        let containers = pod["containers"].as_array_mut();
        containers
            .context("the Deployment must have containers")?
            .retain(|container| container["name"] != DEPLOYED);
        let mut volumes = pod["volumes"].as_array_mut().into_iter().flatten();
        let socket = volumes.find(|volume| volume["name"] == "socket");
        *socket.context("the Deployment must have a volume for the socket")? = json!({
            "name": "socket",
            "hostPath": {"path": SHARED_SOCKET_DIR, "type": "DirectoryOrCreate"},
        });
        replace(&deployments, changed).await?;
        rolled_out(shell).await?;
        Ok(Self(deployed))
    }

    /// Deploys the attacher again, with the roles that recipes may have deleted.
    pub(crate) async fn restore(self, env: &Env<'_>, shell: &Shell) -> Result<()> {
        replace(&deployments(env), json!(self.0)).await?;
        env.nodes.redeploy().await?;
        rolled_out(shell).await
    }
}

fn deployments(env: &Env<'_>) -> Api<Deployment> {
    Api::namespaced(env.nodes.client(), DRIVER_NAMESPACE)
}

async fn replace(deployments: &Api<Deployment>, mut deployment: Value) -> Result<()> {
    // No optimistic lock: controllers update the object concurrently.
    deployment["metadata"]["resourceVersion"] = Value::Null;
    let deployment = serde_json::from_value(deployment).context("write a Deployment")?;
    let replaced = deployments
        .replace(DEPLOYED, &PostParams::default(), &deployment)
        .await;
    replaced.map(drop).context("replace the Deployment of deploy/")
}

async fn rolled_out(shell: &Shell) -> Result<()> {
    let wait =
        format!("kubectl --namespace={DRIVER_NAMESPACE} rollout status deployment/{DEPLOYED} --timeout=3m");
    shell.run(&wait).await.map(drop)
}
