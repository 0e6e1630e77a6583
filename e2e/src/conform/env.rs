//! The environment of one case: its driver, its attacher, one volume and two nodes.

mod objects;
mod volume;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use attacher_contract::observation::{Attachment, Method};
use attacher_contract::{Contract, Observation, Settings};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::api::{Cluster, proxy};
use super::cases::Case;
use super::driver::ScriptedDriver;
use super::observer::Observer;
use super::{Program, VolumeShape};
use crate::api_proxy::ApiProxy;
use crate::attacher::{AttacherProcess, AttacherSpec, Kind, Replica};
use crate::cluster::ignore_not_found;
use crate::fixture::attacher_finalizer;
use crate::process::Run;

/// Time for what an attacher does at once.
pub(super) const SOON: Duration = Duration::from_secs(8);
/// Time after which an attacher that has not done something will not do it.
pub(super) const QUIET: Duration = Duration::from_millis(1500);
/// Time in which an attacher recovers from faults: its longest retry interval is 5 seconds, and a call that hangs ends after
/// [`TIMEOUT`].
const RECOVERY: Duration = Duration::from_secs(15);
/// Deadline of the attacher's driver calls.
const TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const SECRET: &str = "conform-5ecr3t-9f8e7d6c5b4a";

/// The environment of one case.
pub(super) struct CaseEnv {
    pub observer: Observer,
    pub cluster: Arc<Cluster>,
    pub driver: ScriptedDriver,
    pub attachers: Vec<AttacherProcess>,
    run: Arc<Run>,
    program: Arc<Program>,
    case: &'static Case,
    prefix: String,
    dir: PathBuf,
    proxies: Vec<ApiProxy>,
    shape: VolumeShape,
}

// === impl CaseEnv ===

impl CaseEnv {
    /// Creates the objects and starts the driver, but no attacher.
    pub(super) async fn new(
        run: &Arc<Run>,
        client: kube::Client,
        program: &Arc<Program>,
        case: &'static Case,
        number: usize,
    ) -> Result<Self> {
        let prefix = format!("conform-{number}");
        let dir = run.subdir(&prefix)?;
        let settings = Settings {
            secrets: vec![SECRET.to_owned()],
            ..Settings::exact()
        };
        let settings = match program.promises {
            true => settings,
            false => settings.without_promises(),
        };
        let observer = Observer::new(settings);
        let name = format!("{prefix}.csi.local");
        let cluster = Cluster::new(client, observer.clone(), &name, attacher_finalizer(&name));
        let nodes = [format!("{prefix}-id-a"), format!("{prefix}-id-b")];
        let driver = ScriptedDriver::start(
            &name,
            &dir.join("csi.sock"),
            &nodes,
            case.capabilities,
            observer.clone(),
            cluster.write.clone(),
        )?;
        let mut shape = VolumeShape::default();
        (case.shape)(&mut shape);
        let env = Self {
            observer,
            cluster: Arc::new(cluster),
            driver,
            attachers: Vec::new(),
            run: run.clone(),
            program: program.clone(),
            case,
            prefix,
            dir,
            proxies: Vec::new(),
            shape,
        };
        env.force_cleanup().await?;
        env.create_objects().await?;
        Ok(env)
    }

    /// Starts the attacher and waits until it knows the driver.
    pub(super) async fn start_attacher(&mut self) -> Result<()> {
        self.start_replica(None).await
    }

    /// Starts two replicas with leader election.
    pub(super) async fn start_replicas(&mut self) -> Result<()> {
        for name in ["one", "two"] {
            self.start_replica(Some(name)).await?;
        }
        Ok(())
    }

    async fn start_replica(&mut self, replica: Option<&str>) -> Result<()> {
        let by = replica.map_or_else(|| "attacher".to_owned(), |name| self.name(name));
        let (proxy, kubeconfig) = proxy(&self.cluster, &by, &self.dir).await?;
        self.proxies.push(proxy);
        let connected = self.driver.connections();
        let spec = AttacherSpec {
            // Any attacher may exit, and need not handle SIGTERM.
            kind: Kind::Go,
            binary: self.program.path.clone(),
            dir: self.dir.clone(),
            kubeconfig,
            socket: self.driver.socket().to_owned(),
            timeout: TIMEOUT,
            reconcile_sync: self.case.reconcile_sync,
            flags: self.program.flags,
            own_flags: &[],
            replica: replica.map(|_| Replica {
                name: by,
                namespace: "default".to_owned(),
                processes: self.driver.replicas(),
            }),
        };
        let attacher = AttacherProcess::start(self.run.clone(), spec).await?;
        self.attachers.push(attacher);
        let connects = |_: &Contract| self.driver.connections() > connected;
        if !self.observer.wait(Duration::from_secs(20), connects).await {
            let log = self
                .attachers
                .last()
                .map(|attacher| attacher.log_tail(10))
                .unwrap_or_default();
            bail!("the attacher did not connect to the driver's socket in 20 s:\n{log}");
        }
        Ok(())
    }

    /// Kills the attacher, and starts the next process.
    pub(super) async fn restart_attacher(&mut self) -> Result<()> {
        self.crash_attacher().await?;
        self.revive_attacher().await
    }

    pub(super) async fn crash_attacher(&mut self) -> Result<()> {
        self.observer
            .observe(Observation::Fault("the attacher is killed".to_owned()));
        self.attachers[0].crash().await
    }

    pub(super) async fn revive_attacher(&mut self) -> Result<()> {
        self.attachers[0].revive().await
    }

    pub(super) fn name(&self, part: &str) -> String {
        format!("{}-{part}", self.prefix)
    }

    /// The driver's first ID of a node.
    pub(super) fn node_id(&self, node: &str) -> String {
        format!("{}-id-{node}", self.prefix)
    }

    // --- waits ---

    /// Waits until the latest version meets a condition; `None`: it is gone.
    pub(super) async fn wait(
        &self,
        node: &str,
        within: Duration,
        condition: impl Fn(Option<&Attachment>) -> bool,
    ) -> bool {
        let name = self.va(node);
        let holds = |contract: &Contract| {
            let state = contract.world().attachments.get(name.as_str());
            condition(state.map(|state| &*state.version))
        };
        self.observer.wait(within, holds).await
    }

    /// Waits until the attacher has attached the volume.
    pub(super) async fn wait_attached(&self, node: &str) -> bool {
        self.wait(node, SOON, |version| {
            version.is_some_and(|version| version.attached)
        })
        .await
    }

    /// Waits until the VolumeAttachment is gone.
    pub(super) async fn wait_gone(&self, node: &str) -> bool {
        self.wait(node, SOON, |version| version.is_none()).await
    }

    /// Waits until an attachError, or, of a deleting one, a detachError is reported.
    pub(super) async fn wait_error(&self, node: &str) -> bool {
        let has_error = |version: Option<&Attachment>| {
            version.is_some_and(|version| match version.deleting {
                Some(_) => version.detach_error.is_some(),
                None => version.attach_error.is_some(),
            })
        };
        self.wait(node, SOON, has_error).await
    }

    /// Waits until the attacher has sent a call.
    pub(super) async fn wait_call(&self, method: Method) -> bool {
        let runs = |contract: &Contract| {
            let mut running = contract.world().running.values();
            running.any(|(_, call)| call.method == method)
        };
        self.observer.wait(SOON, runs).await
    }

    /// Attaches the volume to node `a`; the case is about what follows.
    pub(super) async fn attached(&self) -> Result<()> {
        if !self.attach_and_wait("a").await? {
            self.settled().await;
        }
        Ok(())
    }

    pub(super) async fn attach_and_wait(&self, node: &str) -> Result<bool> {
        self.attach(node).await?;
        Ok(self.wait_attached(node).await)
    }

    pub(super) async fn detach_and_wait(&self, node: &str) -> Result<()> {
        self.detach(node).await?;
        self.wait_gone(node).await;
        Ok(())
    }

    /// No fault disturbs the attacher at present, and it had enough time.
    pub(super) async fn settled(&self) {
        self.observer.observe_in_time(Observation::Settled, SOON).await;
    }

    // --- end ---

    /// Ends all faults: every VolumeAttachment is attached or gone in time, unless something that lasts prevents it.
    pub(super) async fn recover(&self) {
        self.driver.behave();
        self.cluster.behave();
        self.observer.observe(Observation::Healed);
        self.observer
            .observe_in_time(Observation::Settled, RECOVERY)
            .await;
    }

    /// Detaches and deletes everything, then checks that nothing is left.
    pub(super) async fn clean_up(&self) -> Result<()> {
        for node in ["a", "b"] {
            self.detach(node).await?;
        }
        for node in ["a", "b"] {
            if !self.wait_gone(node).await {
                self.settled().await;
            }
        }
        self.delete_volume().await?;
        self.observer.observe_in_time(Observation::CleanedUp, SOON).await;
        Ok(())
    }

    /// Stops the attachers, checks their output, and deletes what is left.
    pub(super) async fn end(mut self) -> Result<Observer> {
        for attacher in &mut self.attachers {
            attacher.kill_if_running().await?;
        }
        self.driver.down();
        for entry in std::fs::read_dir(&self.dir).context("list the case's files")? {
            let path = entry?.path();
            let is_log = path
                .extension()
                .is_some_and(|extension| extension == "log" || extension == "stdout");
            if is_log && let Ok(text) = std::fs::read(&path) {
                let source = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                let text: Arc<str> = String::from_utf8_lossy(&text).into();
                self.observer.observe(Observation::Text(source, text));
            }
        }
        self.force_cleanup().await?;
        Ok(self.observer)
    }

    /// Deletes the objects, with finalizers. A failed earlier run on the same cluster may have left them.
    async fn force_cleanup(&self) -> Result<()> {
        let client = self.cluster.client.clone();
        let delete = DeleteParams::default();
        let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let params = PatchParams::default();
        let attachments = Api::<VolumeAttachment>::all(client.clone());
        for node in ["a", "b"] {
            ignore_not_found(attachments.delete(&self.va(node), &delete).await)?;
            ignore_not_found(attachments.patch(&self.va(node), &params, &bare).await)?;
            let csi_nodes = Api::<CSINode>::all(client.clone());
            ignore_not_found(csi_nodes.delete(&self.name(node), &delete).await)?;
        }
        let volumes = Api::<PersistentVolume>::all(client);
        ignore_not_found(volumes.delete(&self.name("pv"), &delete).await)?;
        ignore_not_found(volumes.patch(&self.name("pv"), &params, &bare).await)?;
        self.set_secret(false).await
    }
}
