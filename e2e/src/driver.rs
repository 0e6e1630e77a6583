//! The mock CSI driver as a running process: started, spoken to, spoiled, killed and restarted.
//!
//! Invariants: the driver keeps its state directory, journal and socket path over restarts, so a restart is
//! what a node's driver pod goes through; [`Driver::set_faults`] answers only when the rules are in force.

mod array;
pub mod fault;
pub mod journal;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi_proto::v1::{CreateVolumeRequest, DeleteVolumeRequest, ProbeRequest, Volume, VolumeCapability};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::{Channel, Endpoint};

use self::fault::FaultRule;
use self::journal::{Call, Journal, Line};
use crate::fixture::Access;
use crate::process::{Process, Run, Spec};
use crate::wait::Progress;

/// How long the driver may take to answer its first Probe.
const START: Duration = Duration::from_secs(20);
/// How long it may take to end when asked to.
const STOP: Duration = Duration::from_secs(10);
/// How long new fault rules may take to come into force.
const RELOAD: Duration = Duration::from_secs(10);
/// Pause between two tries to reach a driver that is starting: there is nothing else to wait on.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Deadline of the harness's own calls.
const CALL: Duration = Duration::from_secs(30);
/// Size of every volume made.
const VOLUME_BYTES: i64 = 1 << 30;

/// How a driver is set up.
#[derive(Clone, Debug)]
pub struct DriverSpec {
    /// Name it calls itself.
    pub name: String,
    /// How many nodes its array knows: `node-0` and so on.
    pub nodes: usize,
    /// Time each publish and unpublish takes.
    pub latency: Duration,
    /// What it cannot do, as its flag takes it; empty for a driver that can do everything.
    pub capabilities: String,
    /// More flags.
    pub flags: Vec<String>,
}

/// A mock driver, running or not.
#[derive(Debug)]
pub struct Driver {
    run: Arc<Run>,
    binary: PathBuf,
    dir: PathBuf,
    spec: DriverSpec,
    process: Process,
    journal: Journal,
    channel: Channel,
    /// Ids of all rules ever in force that let a call have its effect before they spoil it.
    after_effect_rules: BTreeSet<String>,
}

// === impl Driver ===

impl Driver {
    /// Starts a driver in `dir` and waits until it answers.
    ///
    /// # Errors
    /// The program cannot be started, ends at once, or does not answer in time.
    pub async fn start(run: Arc<Run>, binary: &Path, dir: &Path, spec: DriverSpec) -> Result<Self> {
        let journal = Journal::create(&dir.join("driver-journal.jsonl"))?;
        std::fs::write(dir.join(FAULTS), "[]").context("write the driver's fault file")?;
        let process = Self::spawn(&run, binary, dir, &spec)?;
        let channel = connect(dir.join(SOCKET));
        let driver = Self {
            run,
            binary: binary.to_owned(),
            dir: dir.to_owned(),
            spec,
            process,
            journal,
            channel,
            after_effect_rules: BTreeSet::new(),
        };
        driver.wait_until_ready().await?;
        Ok(driver)
    }

    fn spawn(run: &Run, binary: &Path, dir: &Path, spec: &DriverSpec) -> Result<Process> {
        let path = |name: &str| dir.join(name).display().to_string();
        let args = [
            ("--endpoint", format!("unix://{}", path(SOCKET))),
            ("--driver-name", spec.name.clone()),
            ("--nodes", spec.nodes.to_string()),
            ("--latency", format!("{}ms", spec.latency.as_millis())),
            ("--capabilities", spec.capabilities.clone()),
            ("--state-dir", path("driver-state")),
            ("--journal", path("driver-journal.jsonl")),
            ("--faults", path(FAULTS)),
        ];
        std::fs::create_dir_all(dir.join("driver-state")).context("make the driver's state directory")?;
        let command = args
            .iter()
            .fold(Spec::new("driver", binary).dir(dir), |command, (flag, value)| {
                command.arg(flag).arg(value)
            });
        Process::spawn(run, command.args(&spec.flags))
    }

    /// Waits until the driver says that it is ready.
    async fn wait_until_ready(&self) -> Result<()> {
        let deadline = Instant::now() + START;
        let probe = async {
            loop {
                let mut identity = IdentityClient::new(self.channel.clone());
                let trouble = match timeout(CALL, identity.probe(ProbeRequest {})).await {
                    Ok(Ok(probe)) if probe.get_ref().ready != Some(false) => return Ok(()),
                    Ok(Ok(_)) => "it says that it is not ready".to_owned(),
                    Ok(Err(status)) => status.to_string(),
                    Err(_) => format!("no answer in {CALL:?}"),
                };
                ensure!(
                    Instant::now() < deadline,
                    "driver {} is not ready in {START:?}: {trouble}",
                    self.spec.name
                );
                sleep(POLL_INTERVAL).await;
            }
        };
        self.process.while_alive(probe).await
    }

    /// Name the driver calls itself.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join(SOCKET)
    }

    /// Files with what the driver wrote, for the secret check and for dumps.
    pub fn log_files(&self) -> Vec<PathBuf> {
        vec![
            self.process.log().to_owned(),
            self.process.stdout().to_owned(),
            self.journal.path().to_owned(),
            self.dir.join(FAULTS),
        ]
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
        &self.journal
    }

    /// All calls so far, put together from the journal.
    pub fn calls(&self) -> Result<Vec<Call>> {
        Ok(self.calls_of(&self.journal.lines()?))
    }

    /// The calls in these lines of the journal.
    pub fn calls_of(&self, lines: &[Line]) -> Vec<Call> {
        journal::calls(lines, &self.after_effect_rules)
    }

    /// Waits until `verify` is satisfied with the calls so far.
    pub async fn wait_for_calls<T>(
        &self,
        within: Duration,
        what: &str,
        mut condition: impl FnMut(&[Call]) -> Progress<T>,
    ) -> Result<T> {
        self.journal
            .wait_for(within, what, |lines| condition(&self.calls_of(lines)))
            .await
    }

    /// Makes a volume that one or many nodes may have.
    pub async fn create_volume(&self, name: &str, access: Access) -> Result<Volume> {
        let mode = match access {
            Access::OneNode => Mode::SingleNodeWriter,
            Access::ManyNodes => Mode::MultiNodeMultiWriter,
        };
        self.create(
            name,
            vec![capability(AccessType::Mount(MountVolume::default()), mode)],
        )
        .await
    }

    /// Makes a volume for block and mount use in any access mode.
    pub async fn create_versatile_volume(&self, name: &str) -> Result<Volume> {
        // What serves many writers on many nodes serves any fewer.
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
        let answer = timeout(CALL, self.controller().create_volume(request))
            .await
            .with_context(|| format!("CreateVolume {name} had no answer in {CALL:?}"))?
            .with_context(|| format!("CreateVolume {name}"))?;
        answer
            .into_inner()
            .volume
            .with_context(|| format!("CreateVolume {name} answered without a volume"))
    }

    /// Deletes a volume.
    pub async fn delete_volume(&self, handle: &str) -> Result<()> {
        let request = DeleteVolumeRequest {
            volume_id: handle.to_owned(),
            ..DeleteVolumeRequest::default()
        };
        timeout(CALL, self.controller().delete_volume(request))
            .await
            .with_context(|| format!("DeleteVolume {handle} had no answer in {CALL:?}"))?
            .with_context(|| format!("DeleteVolume {handle}"))?;
        Ok(())
    }

    /// Puts these fault rules into force in place of any others. A driver that is down takes them when it is
    /// started again.
    ///
    /// # Errors
    /// The driver refused the rules or did not take them in time.
    pub async fn set_faults(&mut self, rules: &[FaultRule]) -> Result<()> {
        let spares = rules.iter().filter(|rule| rule.acts_after_effect());
        self.after_effect_rules
            .extend(spares.map(|rule| rule.id().to_owned()));
        let known = self.journal.lines()?.len();
        // JSON is YAML. Renamed into place, so that the driver never reads half a file.
        let log_files = self.dir.join("faults.new");
        std::fs::write(&log_files, serde_json::to_string(rules)?).context("write the fault rules")?;
        std::fs::rename(&log_files, self.dir.join(FAULTS)).context("put the fault rules into place")?;
        if self.process.try_exit().is_some() {
            return Ok(());
        }
        let wanted: Vec<_> = rules.iter().map(|rule| rule.id().to_owned()).collect();
        let loaded = self
            .journal
            .wait_for(RELOAD, "the fault rules to create_pods into force", |lines| {
                lines[known.min(lines.len())..]
                    .iter()
                    .find_map(|line| match line {
                        Line::Faults {
                            error: Some(error), ..
                        } => Some(Err(error.clone())),
                        Line::Faults { ids: Some(ids), .. } if *ids == wanted => Some(Ok(())),
                        Line::Faults { .. } | Line::Begin { .. } | Line::End { .. } | Line::Late { .. } => {
                            None
                        }
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

    /// Takes all fault rules out of force.
    pub async fn clear_faults(&mut self) -> Result<()> {
        self.set_faults(&[]).await
    }

    /// Kills the driver as a crash would.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await?;
        Ok(())
    }

    /// Starts it again, with the state it had, and waits until it answers.
    pub async fn restart(&mut self) -> Result<()> {
        ensure!(
            self.process.try_exit().is_some(),
            "driver {} still runs",
            self.spec.name
        );
        self.process = Self::spawn(&self.run, &self.binary, &self.dir, &self.spec)?;
        self.wait_until_ready().await
    }

    /// Kills the driver and starts it again as one that goes without these capabilities, in the form of its
    /// flag.
    pub async fn restart_without(&mut self, capabilities: &str) -> Result<()> {
        self.kill().await?;
        capabilities.clone_into(&mut self.spec.capabilities);
        self.restart().await
    }

    /// Kills the driver, if it runs, and starts it again with the state it had and with one of its scenarios of faults,
    /// drawn from `seed`. `sparing` names the rules of it that let a call have its effect before they spoil it.
    pub async fn restart_with_scenario(
        &mut self,
        name: &str,
        seed: u64,
        after_effect_rules: &[&str],
    ) -> Result<()> {
        if self.process.try_exit().is_none() {
            self.kill().await?;
        }
        self.after_effect_rules
            .extend(after_effect_rules.iter().map(|&id| id.to_owned()));
        self.spec.flags = vec![format!("--scenario={name}"), format!("--seed={seed}")];
        self.restart().await
    }

    /// Asks the driver to end.
    ///
    /// # Errors
    /// It did not end in time or ended with an error.
    pub async fn stop(&mut self) -> Result<()> {
        self.process.ensure_alive()?;
        let exit = self.process.stop(STOP).await?;
        ensure!(
            exit.status.success(),
            "driver {} ended with {} when asked to stop",
            self.spec.name,
            exit.status
        );
        Ok(())
    }

    fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }
}

/// Name of the socket in the driver's directory.
const SOCKET: &str = "csi.sock";
/// Name of the fault file in the driver's directory.
const FAULTS: &str = "faults.yaml";

fn capability(access_type: AccessType, mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(access_type),
    }
}

/// A channel that connects on its first call, and again after the driver was restarted.
pub fn connect(socket: PathBuf) -> Channel {
    Endpoint::from_static("http://driver.invalid").connect_with_connector_lazy(tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    }))
}
