//! What a contender finds: a driver with volumes, and the objects that describe them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::array::Array;
use super::{Contender, NAMESPACE, Plan, Programs};
use crate::cluster::Cluster;
use crate::process::{Process, Run, Spec};

/// Requests that may be under way at once while objects are made and removed.
const AT_ONCE: usize = 32;
const NODES: usize = 10;
const DRIVER_START: Duration = Duration::from_secs(20);

/// One contender's driver, volumes and nodes.
pub(super) struct Ground {
    /// Begins the names of all objects made here.
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) socket: PathBuf,
    pub(super) kubeconfig: PathBuf,
    pub(super) dir: PathBuf,
    /// Names of the PersistentVolumes.
    pub(super) volumes: Vec<String>,
    array: Array,
    handles: Vec<String>,
    nodes: usize,
    process: Option<Process>,
}

// === impl Ground ===

impl Ground {
    pub(super) async fn prepare(
        run: &Arc<Run>,
        cluster: &Cluster,
        programs: &Programs,
        plan: &Plan,
        contender: Contender,
        round: usize,
    ) -> Result<Self> {
        let name = format!("bench-{round}-{contender}");
        let dir = run.subdir(&name)?;
        let (socket, process) = match &plan.csi_address {
            Some(socket) => (socket.clone(), None),
            None => {
                let socket = dir.join("csi.sock");
                let spec = Spec::new("driver", &programs.driver).dir(&dir).args([
                    format!("--endpoint=unix://{}", socket.display()),
                    format!("--driver-name={name}.example"),
                    format!("--nodes={NODES}"),
                ]);
                (socket, Some(Process::spawn(run, spec)?))
            }
        };
        let array = connect(&socket).await?;
        let driver = array.name().await?;
        let node_ids = match &plan.csi_address {
            Some(_) => vec![array.node_id().await?],
            None => (0..NODES).map(|node| format!("node-{node}")).collect(),
        };
        cluster.create_attacher_account(NAMESPACE, &name, false).await?;
        let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, &name, &dir).await?;
        // One more, for the attacher to show that it is up.
        let count = plan.volumes + plan.samples + 1;
        let made = array
            .create((0..count).map(|volume| format!("{name}-{volume}")))
            .await?;
        let handles: Vec<_> = made.into_iter().map(|volume| volume.volume_id).collect();
        let volumes = (0..count).map(|volume| format!("{name}-{volume}")).collect();
        let nodes = node_ids.len();
        let ground = Self {
            name,
            driver,
            socket,
            kubeconfig,
            dir,
            volumes,
            array,
            handles,
            nodes,
            process,
        };
        ground.create_objects(cluster, &node_ids).await?;
        Ok(ground)
    }

    async fn create_objects(&self, cluster: &Cluster, node_ids: &[String]) -> Result<()> {
        let nodes: Api<CSINode> = Api::all(cluster.client());
        for (node, id) in node_ids.iter().enumerate() {
            let node: CSINode = object(json!({
                "metadata": { "name": self.node(node) },
                "spec": { "drivers": [{ "name": self.driver, "nodeID": id }] },
            }))?;
            nodes
                .create(&PostParams::default(), &node)
                .await
                .context("create a CSINode")?;
        }
        let volumes: Api<PersistentVolume> = Api::all(cluster.client());
        let all = self.volumes.iter().zip(&self.handles).map(|(name, handle)| {
            object(json!({
                "metadata": { "name": name },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": { "storage": "1Gi" },
                    "csi": { "driver": self.driver, "volumeHandle": handle },
                },
            }))
        });
        create(&volumes, all.collect::<Result<Vec<_>>>()?)
            .await
            .context("create PersistentVolumes")
    }

    fn node(&self, node: usize) -> String {
        format!("{}-node-{node}", self.name)
    }

    /// The VolumeAttachment of the volume at `index`.
    pub(super) fn attachment(&self, index: usize) -> Result<VolumeAttachment> {
        object(json!({
            "metadata": { "name": self.volumes[index] },
            "spec": {
                "attacher": self.driver,
                "nodeName": self.node(index % self.nodes),
                "source": { "persistentVolumeName": self.volumes[index] },
            },
        }))
    }

    /// Creates the VolumeAttachments of these volumes, as fast as the API server takes them.
    pub(super) async fn attach(&self, cluster: &Cluster, which: std::ops::Range<usize>) -> Result<()> {
        let attachments: Result<Vec<_>> = which.map(|index| self.attachment(index)).collect();
        create(&Api::all(cluster.client()), attachments?)
            .await
            .context("create VolumeAttachments")
    }

    /// Deletes the VolumeAttachments of these volumes.
    pub(super) async fn detach(&self, cluster: &Cluster, which: std::ops::Range<usize>) -> Result<()> {
        let api: Api<VolumeAttachment> = Api::all(cluster.client());
        delete(&api, self.volumes[which].to_vec())
            .await
            .context("delete VolumeAttachments")
    }

    /// Takes everything away again, so that the next contender finds what this one found.
    ///
    /// # Errors
    /// A volume is still published, or an attachment is left: the contender did not do its work.
    pub(super) async fn clear(self, cluster: &Cluster) -> Result<()> {
        let published = self.array.published().await?;
        ensure!(
            published == 0,
            "{published} volumes are still published after all attachments are gone"
        );
        let attachments: Api<VolumeAttachment> = Api::all(cluster.client());
        let left = attachments.list(&Default::default()).await?;
        let left: Vec<_> = left
            .iter()
            .map(ResourceExt::name_any)
            .filter(|va| va.starts_with(&self.name))
            .collect();
        ensure!(left.is_empty(), "VolumeAttachments are left: {left:?}");

        let volumes: Api<PersistentVolume> = Api::all(cluster.client());
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        stream::iter(&self.volumes)
            .map(Ok)
            .try_for_each_concurrent(AT_ONCE, |name| {
                let (volumes, free) = (&volumes, &free);
                async move { volumes.patch(name, &PatchParams::default(), free).await.map(drop) }
            })
            .await
            .context("free PersistentVolumes")?;
        delete(&volumes, self.volumes.clone())
            .await
            .context("delete PersistentVolumes")?;
        let nodes: Api<CSINode> = Api::all(cluster.client());
        delete(&nodes, (0..self.nodes).map(|node| self.node(node)).collect())
            .await
            .context("delete CSINodes")?;
        cluster.delete_attacher_account(NAMESPACE, &self.name).await?;
        self.array
            .delete(self.handles)
            .await
            .context("delete the driver's volumes")?;
        if let Some(process) = self.process {
            process.stop(DRIVER_START).await?;
        }
        Ok(())
    }
}

async fn connect(socket: &std::path::Path) -> Result<Array> {
    let deadline = Instant::now() + DRIVER_START;
    loop {
        match Array::connect(socket).await {
            Ok(array) => return Ok(array),
            Err(error) if Instant::now() > deadline => return Err(error),
            // Nothing can be awaited: a socket does not tell when somebody begins to listen.
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    }
}

fn object<K: DeserializeOwned>(value: serde_json::Value) -> Result<K> {
    serde_json::from_value(value).context("an object of the bench must be valid")
}

async fn create<K>(api: &Api<K>, objects: Vec<K>) -> Result<(), kube::Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    stream::iter(objects)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |object| async move {
            api.create(&PostParams::default(), &object).await.map(drop)
        })
        .await
}

async fn delete<K>(api: &Api<K>, names: Vec<String>) -> Result<(), kube::Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    stream::iter(names)
        .map(Ok)
        .try_for_each_concurrent(AT_ONCE, |name| async move {
            api.delete(&name, &DeleteParams::default()).await.map(drop)
        })
        .await
}
