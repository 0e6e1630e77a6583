//! A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager and optionally
//! kube-scheduler, all in one executable.
//!
//! Owns their processes, ports, keys and files. Invariants:
//! - a program listens on a port that was reserved for it before it started, also after a restart;
//! - if a program exits unexpectedly, [`ControlPlane::while_alive`] fails with its last log lines;
//! - programs are stopped in reverse dependency order: without etcd, the API server's graceful shutdown hangs.

mod audit;
mod compaction;
mod component;
mod credentials;
mod port;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures::future::{select_all, try_join_all};
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

pub use audit::Request;
pub use component::Component;

use crate::kubeconfig;
use crate::mutex::lock;
use crate::process::{Process, Run, Usage};
use crate::toolchain::Toolchain;
use crate::wait::{self, Progress};
use component::Layout;

/// Timeout of a program's readiness: seconds on an idle machine, longer when tests share the cores.
const READY: Duration = Duration::from_secs(120);
/// Timeout of one readiness probe.
const PROBE: Duration = Duration::from_secs(5);
/// With the default durations: with a shorter renew deadline, the leader exits when a busy machine stalls.
const LEADER_ELECTION: &str = "--leader-elect=true";
/// Number of log lines in the error about a program that does not become ready.
const TAIL_LINES: usize = 25;

/// Options of a control plane.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Start etcd and kube-apiserver only.
    pub api_server_only: bool,
    /// Start kube-scheduler too.
    pub scheduler: bool,
    /// Write an audit log of the ServiceAccounts' requests, for [`ControlPlane::audited`].
    pub audit: bool,
    /// Non-default timers of the attach/detach controller.
    pub timers: Timers,
    /// Run a second kube-controller-manager as standby.
    pub standby_controller_manager: bool,
    /// Flags that are added to or override the default ones, such as `--disable-force-detach-on-timeout`.
    pub extra_flags: BTreeMap<Component, Vec<String>>,
}

/// Timers of the attach/detach controller that have no flags; the control-plane program reads them from its environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timers {
    /// `ReconcilerMaxWaitForUnmountDuration`, 6 minutes.
    pub max_wait_for_unmount: Option<Duration>,
    /// `DesiredStateOfWorldPopulatorLoopSleepPeriod`, 1 minute, and
    /// `DesiredStateOfWorldPopulatorListPodsRetryDuration`, 3 minutes.
    pub populator_period: Option<Duration>,
}

/// A running control plane.
///
/// Dropping it kills its programs; [`ControlPlane::stop`] stops them in order.
#[derive(Debug)]
pub struct ControlPlane {
    run: Arc<Run>,
    layout: Layout,
    options: Options,
    kubeconfig: PathBuf,
    /// The programs that should run.
    alive: Mutex<BTreeMap<Component, Arc<Process>>>,
    /// Notified before a program is stopped intentionally and after one was started.
    changed: watch::Sender<()>,
}

// === impl Timers ===

impl Timers {
    /// Environment variables of the control-plane program, see `control-plane/main.go`.
    fn environment(self) -> impl Iterator<Item = (&'static str, Duration)> {
        let timers = [
            ("ATTACH_DETACH_MAX_WAIT_FOR_UNMOUNT", self.max_wait_for_unmount),
            ("ATTACH_DETACH_POPULATOR_PERIOD", self.populator_period),
        ];
        timers
            .into_iter()
            .filter_map(|(variable, time)| Some((variable, time?)))
    }
}

// === impl ControlPlane ===

impl ControlPlane {
    /// Starts everything and waits until it is ready.
    ///
    /// # Errors
    /// A program exited or did not become ready in time; the error contains its last log lines.
    pub async fn start(run: &Arc<Run>, toolchain: &Toolchain, options: &Options) -> Result<Self> {
        let executable = toolchain.control_plane().await?;
        // A run may have several control planes, and an etcd blocks endlessly on another one's data directory.
        let layout = Layout::prepare(executable, run.new_subdir("control-plane")?)?;
        let mut options = options.clone();
        if options.audit {
            let flags = audit::flags(layout.dir())?;
            let given = options.extra_flags.entry(Component::ApiServer).or_default();
            given.splice(..0, flags);
        }
        let plane = Self {
            run: Arc::clone(run),
            kubeconfig: layout.kubeconfig("admin"),
            layout,
            options,
            alive: Mutex::default(),
            changed: watch::Sender::new(()),
        };
        plane.start_component(Component::Etcd).await?;
        plane.start_component(Component::ApiServer).await?;
        let wanted = [Component::ControllerManager, Component::Scheduler]
            .into_iter()
            .filter(|component| plane.is_wanted(*component));
        try_join_all(wanted.map(|component| plane.start_component(component))).await?;
        // The other replica is the leader by now.
        if plane.is_wanted(Component::StandbyControllerManager) {
            plane.start_component(Component::StandbyControllerManager).await?;
        }
        Ok(plane)
    }

    /// Kubeconfig of a cluster admin.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs `work`, and cancels it with an error with the last log lines if a program exits meanwhile. Programs that this
    /// type stops do not count.
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            result = work => result,
            error = self.death() => Err(error),
        }
    }

    /// Kills a program by SIGKILL; it stays down until [`ControlPlane::start_component`].
    pub async fn kill(&self, component: Component) -> Result<()> {
        self.take(component)?.kill().await.map(drop)
    }

    /// Starts a killed program on the same port with its data, and waits until it is ready.
    pub async fn start_component(&self, component: Component) -> Result<()> {
        if self.process(component).is_some() {
            bail!("{} runs already", component.name());
        }
        let extra = self
            .options
            .extra_flags
            .get(&component)
            .map_or(&[][..], Vec::as_slice);
        let started = Instant::now();
        let mut spec = self.layout.spec(component, extra);
        if self.options.standby_controller_manager && component.is_controller_manager() {
            spec = spec.arg(LEADER_ELECTION);
        }
        for (variable, time) in self.options.timers.environment() {
            spec = spec.env(variable, format!("{}ms", time.as_millis()));
        }
        let process = Arc::new(Process::spawn(&self.run, spec)?);
        process.while_alive(self.readiness(component, &process)).await?;
        tracing::debug!(component = component.name(), after = ?started.elapsed(), "ready");
        self.lock().insert(component, process);
        self.changed.send_replace(());
        Ok(())
    }

    /// Stops a program gracefully and starts it again.
    pub async fn restart(&self, component: Component) -> Result<()> {
        self.take(component)?.stop(component.grace()).await?;
        self.start_component(component).await
    }

    /// Processor time and memory of a program, if it runs.
    pub fn usage(&self, component: Component) -> Option<Usage> {
        self.process(component).map(|process| process.usage())
    }

    /// Process id of a program, if it runs.
    pub fn pid(&self, component: Component) -> Option<u32> {
        self.process(component).map(|process| process.pid())
    }

    /// The requests of ServiceAccounts so far, except those in kube-system; `None` without an audit log
    /// ([`Options::audit`]).
    pub fn audited(&self) -> Result<Option<BTreeSet<Request>>> {
        self.options
            .audit
            .then(|| audit::read(self.layout.dir()))
            .transpose()
    }

    /// File with the log of a program; a restarted program appends to it.
    pub fn log(&self, component: Component) -> PathBuf {
        self.layout.log(component)
    }

    /// The metrics of a program.
    pub async fn metrics(&self, component: Component) -> Result<String> {
        let request = http::Request::get("/metrics")
            .body(Vec::new())
            .context("request metrics")?;
        let client = self.probe_client(component).await?;
        let metrics = client.request_text(request).await;
        metrics.with_context(|| format!("read the metrics of {}", component.name()))
    }

    /// Stops all programs in order; kills those that do not exit in time.
    ///
    /// # Errors
    /// A program exited earlier; the others are stopped nevertheless.
    pub async fn stop(&self) -> Result<()> {
        let died = self
            .lock()
            .values()
            .find_map(|process| process.ensure_alive().err());
        let stop = async |component: Component| match self.take(component) {
            Ok(process) => process.stop(component.grace()).await.map(drop),
            Err(_) => Ok(()),
        };
        let (controllers, standby, scheduler) = tokio::join!(
            stop(Component::ControllerManager),
            stop(Component::StandbyControllerManager),
            stop(Component::Scheduler)
        );
        let ended = [
            controllers,
            standby,
            scheduler,
            stop(Component::ApiServer).await,
            stop(Component::Etcd).await,
        ];
        died.map_or_else(|| ended.into_iter().collect(), Err)
    }

    fn is_wanted(&self, component: Component) -> bool {
        match component {
            Component::Scheduler => self.options.scheduler,
            Component::StandbyControllerManager => self.options.standby_controller_manager,
            Component::ControllerManager => !self.options.api_server_only,
            Component::Etcd | Component::ApiServer => true,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<Component, Arc<Process>>> {
        lock(&self.alive)
    }

    /// The program, if it should run and does.
    fn process(&self, component: Component) -> Option<Arc<Process>> {
        let process = self.lock().get(&component).map(Arc::clone);
        process.filter(|process| process.try_exit().is_none())
    }

    /// Removes a program from those that should run, before it is stopped.
    fn take(&self, component: Component) -> Result<Arc<Process>> {
        let process = self.lock().remove(&component);
        self.changed.send_replace(());
        process.with_context(|| format!("{} does not run", component.name()))
    }

    /// Waits until a program exits that should run.
    async fn death(&self) -> anyhow::Error {
        let mut changed = self.changed.subscribe();
        loop {
            let processes: Vec<_> = self.lock().values().map(Arc::clone).collect();
            let exit = async { select_all(processes.iter().map(|process| Box::pin(process.exited()))).await };
            tokio::select! {
                biased;
                // A program is removed before it is stopped, so this notification comes first.
                _ = changed.changed() => {}
                _ = exit, if !processes.is_empty() => {
                    if let Some(error) = processes.iter().find_map(|process| process.ensure_alive().err()) {
                        return error;
                    }
                }
            }
        }
    }

    /// Probes a component until it is ready.
    async fn readiness(&self, component: Component, process: &Process) -> Result<()> {
        let client = self.probe_client(component).await?;
        // With leader election the controllers are built when the replica becomes leader, which may not happen while the
        // standby runs.
        let standby = Component::StandbyControllerManager;
        let may_be_standby = component == Component::ControllerManager && self.process(standby).is_some();
        let (path, word) = match may_be_standby {
            true => standby.readiness(),
            false => component.readiness(),
        };
        let what = format!("{} to be ready", component.name());
        let ready = wait::poll(READY, &what, || async {
            let request = http::Request::get(path)
                .body(Vec::new())
                .context("build the readiness request")?;
            Ok(match timeout(PROBE, client.request_text(request)).await {
                Ok(Ok(text)) => Progress::of(text.contains(word), || format!("its response is {text:?}")),
                Ok(Err(error)) => Progress::Pending(format!("{:#}", anyhow::Error::from(error))),
                Err(_) => Progress::Pending(format!("no response within {PROBE:?}")),
            })
        });
        ready
            .await
            .map_err(|error| anyhow!("{error:#}; the end of its log:\n{}", process.log_tail(TAIL_LINES)))
    }

    /// A client of the component itself, with the admin's token if the component authenticates.
    async fn probe_client(&self, component: Component) -> Result<Client> {
        let mut config = kubeconfig::config(&self.kubeconfig).await?;
        config.cluster_url = self
            .layout
            .url(component)
            .parse()
            .context("understand a component's URL")?;
        Client::try_from(config).with_context(|| format!("make a client for {}", component.name()))
    }
}
