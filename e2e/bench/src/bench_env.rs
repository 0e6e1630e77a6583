//! The environment of an implementation: a driver with volumes, and their Kubernetes objects.

mod needs;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::config::Kubeconfig;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

pub(super) use self::needs::Needs;
use super::csi_client::CsiClient;
use super::objects::{create, delete, object, patch_status, wipe};
use super::proxy::Proxy;
use super::{Harness, NAMESPACE};
use csi_e2e::driver::journal::{Call, Journal, Line, calls};
use csi_e2e::fixture::attacher_finalizer;
use csi_e2e::kubeconfig;
use csi_e2e::process::{Process, Spec};
use csi_e2e::wait::{self, Progress};

const DRIVER_START: Duration = Duration::from_secs(20);
const NODE_ID_ANNOTATION: &str = "csi.alpha.kubernetes.io/node-id";

/// One implementation's driver, volumes and nodes.
pub(super) struct BenchEnv {
    /// Name prefix of all created objects.
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) socket: PathBuf,
    pub(super) kubeconfig: PathBuf,
    pub(super) dir: PathBuf,
    /// Names of the PersistentVolumes, and of their VolumeAttachments.
    pub(super) volumes: Vec<String>,
    pub(super) handles: Vec<String>,
    csi_client: CsiClient,
    node_ids: Vec<String>,
    /// The driver and its start parameters, unless it is external.
    process: Option<(Process, Spec)>,
    pub(super) journal: Journal,
    _proxy: Option<Proxy>,
}

// === impl BenchEnv ===

impl BenchEnv {
    /// Starts the driver and creates the volumes and all objects but VolumeAttachments.
    pub(super) async fn prepare(harness: &Harness<'_>, name: String, needs: Needs) -> Result<Self> {
        let dir = harness.run.subdir(&name)?;
        let stranger = harness.csi_address.as_ref().filter(|_| needs.any_driver);
        ensure!(
            harness.csi_address.is_none() || needs.any_driver,
            "this row needs the mock driver: leave it out, or leave out --csi-address"
        );
        let journal = Journal::create(&dir.join("journal.jsonl"))?;
        let (socket, process) = match stranger {
            Some(socket) => (socket.clone(), None),
            None => {
                let spec = driver_spec(&harness.programs.driver, &dir, &name, journal.path(), &needs)?;
                let process = Process::spawn(harness.run, spec.clone())?;
                (dir.join(SOCKET), Some((process, spec)))
            }
        };
        let csi_client = connect(&socket).await?;
        let driver = csi_client.name().await?;
        let node_ids = match stranger {
            Some(_) => vec![csi_client.node_id().await?],
            None => (0..needs.nodes).map(|node| format!("node-{node}")).collect(),
        };
        let cluster = harness.cluster;
        cluster.create_attacher_account(NAMESPACE, &name, false).await?;
        let kubeconfig = cluster.service_account_kubeconfig(NAMESPACE, &name, &dir).await?;
        let proxy = match needs.api_delay {
            Some(delay) => Some(via_proxy(&kubeconfig, delay).await?),
            None => None,
        };
        let mut env = Self {
            name,
            driver,
            socket,
            kubeconfig,
            dir,
            volumes: Vec::new(),
            handles: Vec::new(),
            csi_client,
            node_ids,
            process,
            journal,
            _proxy: proxy,
        };
        env.add_volumes(needs.volumes).await?;
        let nodes = env.node_ids.iter().enumerate().map(|(node, id)| {
            object(json!({
                "metadata": { "name": env.node(node) },
                "spec": { "drivers": [{ "name": env.driver, "nodeID": id }] },
            }))
        });
        create::<CSINode>(&Api::all(cluster.client()), nodes)
            .await
            .context("create CSINodes")?;
        env.create_persistent_volumes(harness, &[], 0..needs.volumes)
            .await?;
        Ok(env)
    }

    /// Creates `count` more volumes at the driver.
    pub(super) async fn add_volumes(&mut self, count: usize) -> Result<()> {
        let first = self.volumes.len();
        let names: Vec<_> = (first..first + count)
            .map(|volume| format!("{}-{volume}", self.name))
            .collect();
        let made = self.csi_client.create(names.iter().cloned()).await?;
        self.volumes.extend(names);
        self.handles
            .extend(made.into_iter().map(|volume| volume.volume_id));
        Ok(())
    }

    /// Deletes these VolumeAttachments with their finalizers, if they exist. No attacher may be running.
    pub(super) async fn wipe_attachments(&self, harness: &Harness<'_>, which: Range<usize>) -> Result<()> {
        wipe::<VolumeAttachment>(&Api::all(harness.cluster.client()), &self.volumes[which])
            .await
            .context("wipe VolumeAttachments")
    }

    /// Creates PersistentVolumes, VolumeAttachments and publications at the driver as they are after an
    /// attach.
    pub(super) async fn create_attached(&self, harness: &Harness<'_>, which: Range<usize>) -> Result<()> {
        let finalizer = attacher_finalizer(&self.driver);
        self.create_persistent_volumes(harness, &[finalizer.as_str()], which.clone())
            .await?;
        let published = which.clone().map(|index| {
            let node = index % self.node_ids.len();
            (self.handles[index].clone(), self.node_ids[node].clone())
        });
        self.csi_client
            .publish(published)
            .await
            .context("publish volumes")?;
        let attachments = which.clone().map(|index| {
            let mut attachment = self.attachment(index)?;
            let node = index % self.node_ids.len();
            attachment.metadata.finalizers = Some(vec![finalizer.clone()]);
            attachment.metadata.annotations =
                Some([(NODE_ID_ANNOTATION.to_owned(), self.node_ids[node].clone())].into());
            Ok(attachment)
        });
        let api: Api<VolumeAttachment> = Api::all(harness.cluster.client());
        create(&api, attachments)
            .await
            .context("create attached VolumeAttachments")?;
        patch_status(&api, &self.volumes[which], json!({ "attached": true }))
            .await
            .context("mark VolumeAttachments as attached")
    }

    async fn create_persistent_volumes(
        &self,
        harness: &Harness<'_>,
        finalizers: &[&str],
        which: Range<usize>,
    ) -> Result<()> {
        let volumes = which.map(|index| {
            object::<PersistentVolume>(json!({
                "metadata": { "name": self.volumes[index], "finalizers": finalizers },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": { "storage": "1Gi" },
                    "csi": { "driver": self.driver, "volumeHandle": self.handles[index] },
                },
            }))
        });
        create(&Api::all(harness.cluster.client()), volumes)
            .await
            .context("create PersistentVolumes")
    }

    fn node(&self, node: usize) -> String {
        format!("{}-node-{node}", self.name)
    }

    /// The node of the volume at `index`.
    pub(super) fn node_of(&self, index: usize) -> String {
        self.node(index % self.node_ids.len())
    }

    /// The VolumeAttachment of the volume at `index`.
    pub(super) fn attachment(&self, index: usize) -> Result<VolumeAttachment> {
        object(json!({
            "metadata": { "name": self.volumes[index] },
            "spec": {
                "attacher": self.driver,
                "nodeName": self.node_of(index),
                "source": { "persistentVolumeName": self.volumes[index] },
            },
        }))
    }

    /// Creates the VolumeAttachments of these volumes at the maximum rate.
    pub(super) async fn attach(&self, harness: &Harness<'_>, which: Range<usize>) -> Result<()> {
        let attachments = which.map(|index| self.attachment(index));
        create(&Api::all(harness.cluster.client()), attachments)
            .await
            .context("create VolumeAttachments")
    }

    /// Deletes the VolumeAttachments of these volumes.
    pub(super) async fn detach(&self, harness: &Harness<'_>, which: Range<usize>) -> Result<()> {
        let api: Api<VolumeAttachment> = Api::all(harness.cluster.client());
        delete(&api, &self.volumes[which])
            .await
            .context("delete VolumeAttachments")
    }

    /// Replaces the driver's fault file, and returns when the driver has loaded it. Needs a journal.
    pub(super) async fn set_faults(&self, faults: &Value) -> Result<()> {
        let mut journal = self.journal.tail()?;
        journal.read()?;
        let new = self.dir.join("faults.new");
        std::fs::write(&new, faults.to_string()).context("write the driver's fault file")?;
        std::fs::rename(new, self.dir.join(FAULTS)).context("replace the driver's fault file")?;
        let loaded = async {
            loop {
                let lines = journal.read()?;
                if lines
                    .iter()
                    .any(|line| matches!(line, Line::Faults { ids: Some(_), .. }))
                {
                    return anyhow::Ok(());
                }
                journal.changed().await?;
            }
        };
        let loaded = tokio::time::timeout(DRIVER_START, loaded).await;
        loaded.context("the driver does not load its fault file")?
    }

    /// The calls of the driver so far. Needs a journal.
    pub(super) fn calls(&self) -> Result<Vec<Call>> {
        Ok(calls(&self.journal.lines()?, &BTreeSet::new()))
    }

    /// Kills the driver, as a crash would.
    pub(super) async fn kill_driver(&mut self) -> Result<()> {
        let (process, _) = self.process.as_ref().context("the driver must be ours")?;
        process.kill().await.map(drop)
    }

    /// Restarts it with its state; returns when it answers.
    pub(super) async fn restart_driver(&mut self, harness: &Harness<'_>) -> Result<()> {
        let (process, spec) = self.process.as_mut().context("the driver must be ours")?;
        *process = Process::spawn(harness.run, spec.clone())?;
        self.csi_client = connect(&self.socket).await?;
        Ok(())
    }

    /// Deletes everything, also after an error, so that the next implementation starts from the same state.
    ///
    /// # Errors
    ///
    /// The first of: the error of the measurement; a volume that is still published or a VolumeAttachment that is left,
    /// because the implementation did not complete its work; a failed deletion.
    pub(super) async fn clear<T>(self, harness: &Harness<'_>, measured: Result<T>) -> Result<T> {
        let measured = match measured {
            Ok(measured) => self.ensure_all_detached(harness).await.map(|()| measured),
            Err(error) => Err(error),
        };
        self.wipe_after(harness, measured).await
    }

    async fn ensure_all_detached(&self, harness: &Harness<'_>) -> Result<()> {
        let published = self.csi_client.published().await?;
        ensure!(
            published == 0,
            "{published} volumes are still published after all attachments are gone"
        );
        let attachments: Api<VolumeAttachment> = Api::all(harness.cluster.client());
        let left = attachments.list(&Default::default()).await?;
        let left: Vec<_> = left
            .iter()
            .map(ResourceExt::name_any)
            .filter(|va| self.volumes.contains(va))
            .collect();
        ensure!(left.is_empty(), "VolumeAttachments are left: {left:?}");
        Ok(())
    }

    /// Wipes after a measurement, also after a failed one, and returns the first error.
    pub(super) async fn wipe_after<T>(self, harness: &Harness<'_>, measured: Result<T>) -> Result<T> {
        let wiped = self.wipe(harness).await;
        measured.and_then(|measured| wiped.map(|()| measured))
    }

    /// Deletes everything unconditionally. No attacher may be running.
    pub(super) async fn wipe(self, harness: &Harness<'_>) -> Result<()> {
        let client = || harness.cluster.client();
        self.wipe_attachments(harness, 0..self.volumes.len()).await?;
        wipe::<PersistentVolume>(&Api::all(client()), &self.volumes)
            .await
            .context("wipe PersistentVolumes")?;
        let nodes: Vec<_> = (0..self.node_ids.len()).map(|node| self.node(node)).collect();
        wipe::<CSINode>(&Api::all(client()), &nodes)
            .await
            .context("wipe CSINodes")?;
        harness.cluster.delete_account(NAMESPACE, &self.name).await?;
        match self.process {
            Some((process, _)) => process.kill().await.map(drop),
            None => self
                .csi_client
                .delete(self.handles)
                .await
                .context("delete the driver's volumes"),
        }
    }
}

const SOCKET: &str = "csi.sock";
const FAULTS: &str = "faults.yaml";

fn driver_spec(program: &Path, dir: &Path, name: &str, journal: &Path, needs: &Needs) -> Result<Spec> {
    let faults = dir.join(FAULTS);
    if let Some(rules) = &needs.faults {
        // JSON is YAML.
        std::fs::write(&faults, rules.to_string()).context("write the driver's fault file")?;
    }
    let state = dir.join("driver-state");
    std::fs::create_dir_all(&state).context("make the driver's state directory")?;
    // Services that are not needed are disabled, because they would use CPU of the measured processes.
    let optional = [
        (needs.journal, format!("--journal={}", journal.display())),
        (needs.durable, format!("--state-dir={}", state.display())),
        (needs.faults.is_some(), format!("--faults={}", faults.display())),
    ];
    Ok(Spec::new("driver", program)
        .dir(dir)
        .args([
            format!("--endpoint=unix://{}", dir.join(SOCKET).display()),
            format!("--driver-name={name}.example"),
            format!("--nodes={}", needs.nodes),
            format!("--latency={}ms", needs.latency.as_millis()),
        ])
        .args(
            optional
                .into_iter()
                .filter(|(wanted, _)| *wanted)
                .map(|(_, flag)| flag),
        ))
}

/// Rewrites the kubeconfig to use a proxy with this delay.
async fn via_proxy(path: &Path, delay: Duration) -> Result<Proxy> {
    let mut config = Kubeconfig::read_from(path).context("read the implementation's kubeconfig")?;
    let server = config
        .clusters
        .iter_mut()
        .find_map(|named| named.cluster.as_mut()?.server.as_mut())
        .context("a kubeconfig must name its server")?;
    let uri: http::Uri = server.parse().context("understand the API server's URL")?;
    let target = uri.authority().context("the API server's URL must have a host")?;
    let proxy = Proxy::start(target.to_string(), delay).await?;
    *server = format!("https://{}", proxy.address());
    kubeconfig::save(path, &config)?;
    Ok(proxy)
}

async fn connect(socket: &Path) -> Result<CsiClient> {
    wait::poll(DRIVER_START, "the driver", || async {
        Ok(match CsiClient::connect(socket).await {
            Ok(client) => Progress::Reached(client),
            Err(error) => Progress::Pending(format!("{error:#}")),
        })
    })
    .await
}
