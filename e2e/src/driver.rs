//! The processes of the mock CSI driver: one with controller and array, and one for each node.
//!
//! Invariants: the driver keeps its state directory, journal and socket path over restarts, like the driver's pod;
//! [`Driver::set_faults`] returns only when the rules are active.

pub mod array;
pub mod fault;
mod instance;
pub mod journal;
mod node_driver;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::{CreateVolumeRequest, DeleteVolumeRequest, Volume, VolumeCapability};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use self::fault::FaultRule;
use self::instance::Instance;
use self::journal::{Call, Journal, Line};
pub use self::node_driver::NodeDriver;
use self::node_driver::NodeDriverSpec;
use crate::fixture::Access;
use crate::nodes::RealNode;
use crate::process::{Run, Spec};
use crate::wait::Progress;

/// Timeout of activating new fault rules.
const RELOAD: Duration = Duration::from_secs(10);
/// Pause between two polls if there is no event to wait for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Deadline of the harness's calls.
const CALL: Duration = Duration::from_secs(30);
/// Size of every created volume.
const VOLUME_BYTES: i64 = 1 << 30;

/// Configuration of a driver.
#[derive(Clone, Debug)]
pub struct DriverSpec {
    /// Name of the driver.
    pub name: String,
    /// Number of the array's nodes, `node-0` and so on.
    pub nodes: usize,
    /// Time each publish and unpublish takes.
    pub latency: Duration,
    /// Capabilities that it lacks, in the format of its flag; empty: it has all.
    pub capabilities: String,
    /// More flags.
    pub flags: Vec<String>,
}

/// A mock driver: the process with controller and array, running or not.
#[derive(Debug)]
pub struct Driver {
    run: Arc<Run>,
    binary: PathBuf,
    dir: PathBuf,
    spec: DriverSpec,
    instance: Instance,
    /// Ids of all rules set so far that fail a call after its effect.
    after_effect_rules: BTreeSet<String>,
}

// === impl Driver ===

impl Driver {
    /// Starts a driver in `dir` and waits until it is ready.
    ///
    /// # Errors
    /// The program cannot be started, exits, or is not ready in time.
    pub async fn start(run: Arc<Run>, binary: &Path, dir: &Path, spec: DriverSpec) -> Result<Self> {
        std::fs::create_dir_all(dir.join("driver-state")).context("make the driver's state directory")?;
        std::fs::write(dir.join(FAULTS), "[]").context("write the driver's fault file")?;
        let command = command(binary, dir, &spec);
        let instance =
            Instance::start(Arc::clone(&run), command, &dir.join(SOCKET), &dir.join(JOURNAL)).await?;
        Ok(Self {
            run,
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            spec,
            instance,
            after_effect_rules: BTreeSet::new(),
        })
    }

    /// Starts the driver process of the `index`th node, on the real node if there is one.
    pub async fn start_node(&self, index: usize, real: Option<&RealNode>) -> Result<NodeDriver> {
        let node_id = self.node_id(index)?;
        let dir = self.dir.join(&node_id);
        let spec = NodeDriverSpec {
            driver: &self.spec.name,
            node_id: &node_id,
            array: &self.admin_socket(),
            media: &self.dir.join(MEDIA),
            capabilities: &self.spec.capabilities,
            real,
        };
        let started = NodeDriver::start(Arc::clone(&self.run), &self.binary, &dir, spec).await;
        started.with_context(|| format!("start the driver of node {node_id}"))
    }

    fn admin_socket(&self) -> PathBuf {
        self.dir.join(ADMIN)
    }

    /// Name of the driver.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    /// The driver's id of its `index`th node.
    pub fn node_id(&self, index: usize) -> Result<String> {
        ensure!(
            index < self.spec.nodes,
            "driver {} has {} nodes only",
            self.spec.name,
            self.spec.nodes
        );
        Ok(format!("node-{index}"))
    }

    /// The journal of its calls.
    pub fn journal(&self) -> &Journal {
        self.instance.journal()
    }

    /// All calls so far, from the journal.
    pub fn calls(&self) -> Result<Vec<Call>> {
        Ok(self.calls_of(&self.journal().lines()?))
    }

    /// Number of calls of the method for the volume so far.
    pub fn calls_to(&self, method: &str, handle: &str) -> Result<usize> {
        let calls = self.calls()?;
        let of_volume = calls.iter().filter(|call| call.volume == handle);
        Ok(of_volume.filter(|call| call.method == method).count())
    }

    /// The calls in these lines of the journal.
    pub fn calls_of(&self, lines: &[Line]) -> Vec<Call> {
        journal::calls(lines, &self.after_effect_rules)
    }

    /// Waits until `condition` holds for the calls so far.
    pub async fn wait_for_calls<T>(
        &self,
        within: Duration,
        what: &str,
        mut condition: impl FnMut(&[Call]) -> Progress<T>,
    ) -> Result<T> {
        self.journal()
            .wait_for(within, what, |lines| condition(&self.calls_of(lines)))
            .await
    }

    /// Creates a volume with this access.
    pub async fn create_volume(&self, name: &str, access: Access) -> Result<Volume> {
        let mode = match access {
            Access::OnePod => Mode::SingleNodeSingleWriter,
            Access::OneNode => Mode::SingleNodeWriter,
            Access::ManyReaders => Mode::MultiNodeReaderOnly,
            Access::ManyNodes => Mode::MultiNodeMultiWriter,
        };
        self.create(
            name,
            vec![capability(AccessType::Mount(MountVolume::default()), mode)],
        )
        .await
    }

    /// Creates a volume for block and mount access in all access modes.
    pub async fn create_volume_with_all_access_modes(&self, name: &str) -> Result<Volume> {
        // A multi-node multi-writer volume supports all other modes.
        let mode = Mode::MultiNodeMultiWriter;
        let uses = vec![
            capability(AccessType::Mount(MountVolume::default()), mode),
            capability(AccessType::Block(BlockVolume {}), mode),
        ];
        self.create(name, uses).await
    }

    async fn create(&self, name: &str, volume_capabilities: Vec<VolumeCapability>) -> Result<Volume> {
        let request = CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(csi_proto::v1::CapacityRange {
                required_bytes: VOLUME_BYTES,
                limit_bytes: 0,
            }),
            volume_capabilities,
            ..CreateVolumeRequest::default()
        };
        let response = timeout(CALL, self.controller().create_volume(request))
            .await
            .with_context(|| format!("CreateVolume {name} had no response in {CALL:?}"))?
            .with_context(|| format!("CreateVolume {name}"))?;
        response
            .into_inner()
            .volume
            .with_context(|| format!("CreateVolume {name} returned no volume"))
    }

    /// Deletes a volume. Retries while another call for it is pending, because a provisioner may delete it
    /// concurrently.
    pub async fn delete_volume(&self, handle: &str) -> Result<()> {
        let request = DeleteVolumeRequest {
            volume_id: handle.to_owned(),
            ..DeleteVolumeRequest::default()
        };
        let deleted = async {
            loop {
                match self.controller().delete_volume(request.clone()).await {
                    // The CSI specification asks callers to retry.
                    Err(status) if status.code() == Code::Aborted => sleep(POLL_INTERVAL).await,
                    result => return result,
                }
            }
        };
        timeout(CALL, deleted)
            .await
            .with_context(|| format!("DeleteVolume {handle} had no response in {CALL:?}"))?
            .with_context(|| format!("DeleteVolume {handle}"))?;
        Ok(())
    }

    /// Replaces all fault rules by these. A stopped driver loads them at its next start.
    ///
    /// # Errors
    /// The driver rejected the rules or did not load them in time.
    pub async fn set_faults(&mut self, rules: &[FaultRule]) -> Result<()> {
        let after_effect = rules.iter().filter(|rule| rule.acts_after_effect());
        self.after_effect_rules
            .extend(after_effect.map(|rule| rule.id().to_owned()));
        let known = self.journal().lines()?.len();
        // JSON is YAML. The file is renamed into place, so that the driver never reads a partial file.
        let new = self.dir.join("faults.new");
        std::fs::write(&new, serde_json::to_string(rules)?).context("write the fault rules")?;
        std::fs::rename(&new, self.dir.join(FAULTS)).context("put the fault rules into place")?;
        if !self.instance.is_running() {
            return Ok(());
        }
        let wanted: Vec<_> = rules.iter().map(|rule| rule.id().to_owned()).collect();
        let loaded = self
            .journal()
            .wait_for(RELOAD, "the fault rules to come into force", |lines| {
                lines[known.min(lines.len())..]
                    .iter()
                    .find_map(|line| match line {
                        Line::Faults {
                            error: Some(error), ..
                        } => Some(Err(error.to_string())),
                        Line::Faults { ids: Some(ids), .. } if **ids == wanted => Some(Ok(())),
                        Line::Faults { .. }
                        | Line::Begin { .. }
                        | Line::End { .. }
                        | Line::Late { .. }
                        | Line::Lost { .. } => None,
                    })
                    .map_or_else(
                        || Progress::Pending("the journal has no line about them".to_owned()),
                        Progress::Reached,
                    )
            })
            .await?;
        if let Err(error) = loaded {
            bail!("the driver refused the fault rules: {error}");
        }
        Ok(())
    }

    /// Removes all fault rules.
    pub async fn clear_faults(&mut self) -> Result<()> {
        self.set_faults(&[]).await
    }

    /// Kills the driver by SIGKILL.
    pub async fn kill(&mut self) -> Result<()> {
        self.instance.kill().await
    }

    /// Starts it again with its state, and waits until it is ready.
    pub async fn restart(&mut self) -> Result<()> {
        let command = command(&self.binary, &self.dir, &self.spec);
        self.instance.restart(command).await
    }

    /// Kills the driver and starts it again without these capabilities, in the format of its flag.
    pub async fn restart_without(&mut self, capabilities: &str) -> Result<()> {
        self.kill().await?;
        capabilities.clone_into(&mut self.spec.capabilities);
        self.restart().await
    }

    /// Kills the driver, if it runs, and starts it again with its state and one of its fault scenarios, with this seed.
    /// `after_effect_rules`: the scenario's rules that fail a call after its effect.
    pub async fn restart_with_scenario(
        &mut self,
        name: &str,
        seed: u64,
        after_effect_rules: &[&str],
    ) -> Result<()> {
        if self.instance.is_running() {
            self.kill().await?;
        }
        self.after_effect_rules
            .extend(after_effect_rules.iter().map(|&id| id.to_owned()));
        self.spec.flags = vec![format!("--scenario={name}"), format!("--seed={seed}")];
        self.restart().await
    }

    /// Stops the driver by SIGTERM.
    ///
    /// # Errors
    /// It did not exit in time, or with an error.
    pub async fn stop(&self) -> Result<()> {
        self.instance.stop().await
    }

    /// A channel to its socket, which reconnects after a restart.
    pub fn channel(&self) -> Channel {
        self.instance.channel()
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel())
    }
}

// Names in the driver's directory.
const SOCKET: &str = "csi.sock";
const ADMIN: &str = "admin.sock";
const JOURNAL: &str = "driver-journal.jsonl";
pub(crate) const FAULTS: &str = "faults.yaml";
const MEDIA: &str = "media";

fn command(binary: &Path, dir: &Path, spec: &DriverSpec) -> Spec {
    let path = |name: &str| dir.join(name).display().to_string();
    let flags = [
        format!("--endpoint=unix://{}", path(SOCKET)),
        format!("--admin-endpoint=unix://{}", path(ADMIN)),
        format!("--driver-name={}", spec.name),
        format!("--nodes={}", spec.nodes),
        format!("--latency={}ms", spec.latency.as_millis()),
        format!("--capabilities={}", spec.capabilities),
        format!("--state-dir={}", path("driver-state")),
        format!("--media-dir={}", path(MEDIA)),
        format!("--journal={}", path(JOURNAL)),
        format!("--faults={}", path(FAULTS)),
    ];
    Spec::new("driver", binary).dir(dir).args(flags).args(&spec.flags)
}

fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

/// A channel that connects on its first call, and reconnects after a restart of the driver.
pub fn connect(socket: PathBuf) -> Channel {
    Endpoint::from_static("http://driver.invalid").connect_with_connector_lazy(tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }))
}
