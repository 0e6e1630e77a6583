//! A real Kubernetes control plane on loopback: etcd, kube-apiserver, kube-controller-manager and, if asked
//! for, kube-scheduler, all out of one executable.
//!
//! Owns their processes, ports, keys and files. Invariants:
//! - a program listens on a port that was reserved for it before it started, also after a restart;
//! - a program that exits unexpectedly fails everything that goes through
//!   [`ControlPlane::while_alive`], with its last log lines;
//! - programs end in the reverse order of their dependence: an API server whose etcd is gone hangs in its
//!   graceful stop.

mod audit;
mod component;
mod credentials;
mod port;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::{select_all, try_join_all};
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

pub use audit::Request;
pub use component::Component;

use crate::kubeconfig;
use crate::process::{self, Process, Run, Usage};
use crate::toolchain::Toolchain;
use component::Layout;

/// How long a program may take to get ready: seconds on an idle machine, more when tests share its cores.
const READY: Duration = Duration::from_secs(120);
/// How long an answer to one question for readiness may take.
const PROBE: Duration = Duration::from_secs(5);
/// Pause between two questions for readiness; there is nothing to wait on before a program listens.
const PROBE_PAUSE: Duration = Duration::from_millis(50);
/// Short enough for a test to wait for the lease of a killed replica to expire.
const LEADER_ELECTION: [&str; 4] = [
    "--leader-elect=true",
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=4s",
    "--leader-elect-retry-period=1s",
];
/// How many lines of the log of a program that does not get ready are shown.
const TAIL_LINES: usize = 25;

/// What to start, and how it differs from the usual.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Start etcd and kube-apiserver only.
    pub api_server_only: bool,
    /// Start kube-scheduler too.
    pub scheduler: bool,
    /// Log what service accounts ask the API server for, for [`ControlPlane::audited`].
    pub audit: bool,
    /// Timers of the attach/detach controller that differ.
    pub timers: Timers,
    /// Run a second kube-controller-manager, which takes over when the first is killed.
    pub standby_controller_manager: bool,
    /// Flags on top of, or instead of, the usual ones, such as `--disable-force-detach-on-timeout`.
    pub extra_flags: BTreeMap<Component, Vec<String>>,
}

/// Timers of the attach/detach controller that are no flags; the control-plane program takes them from its environment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timers {
    /// `ReconcilerMaxWaitForUnmountDuration`, 6 minutes.
    pub max_wait_for_unmount: Option<Duration>,
    /// `DesiredStateOfWorldPopulatorLoopSleepPeriod`, 1 minute, and
    /// `DesiredStateOfWorldPopulatorListPodsRetryDuration`, 3 minutes.
    pub populator_period: Option<Duration>,
}

/// A control plane that was started.
///
/// Dropping it kills its programs; [`ControlPlane::stop`] ends them in order.
#[derive(Debug)]
pub struct ControlPlane {
    run: Arc<Run>,
    layout: Layout,
    options: Options,
    kubeconfig: PathBuf,
    /// The programs that are meant to run.
    alive: Mutex<BTreeMap<Component, Arc<Process>>>,
    /// Changes before a program is ended on purpose and after one was started.
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
    /// The error holds the last log lines of a program that died or did not get ready in time.
    pub async fn start(run: &Arc<Run>, toolchain: &Toolchain, options: &Options) -> Result<Self> {
        let executable = toolchain.control_plane().await?;
        // A run may have several, and an etcd waits for ever for the data of another one.
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
        // The other replica leads by now.
        if plane.is_wanted(Component::StandbyControllerManager) {
            plane.start_component(Component::StandbyControllerManager).await?;
        }
        Ok(plane)
    }

    /// Kubeconfig of a cluster admin.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Runs `work` and gives it up, with last log lines, if a program dies meanwhile. One that is ended through
    /// this type does not count as dying.
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            result = work => result,
            error = self.death() => Err(error),
        }
    }

    /// Kills a program as a crash would (SIGKILL) and leaves it dead until [`ControlPlane::start_component`].
    pub async fn kill(&self, component: Component) -> Result<()> {
        self.take(component)?.kill().await.map(drop)
    }

    /// Starts a program that was killed, on its old port and with its old data, and waits until it is ready.
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
            spec = spec.args(LEADER_ELECTION);
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

    /// What service accounts asked the API server for so far, those of kube-system apart; `None` without an audit log
    /// count ([`Options::audit`]).
    pub fn audited(&self) -> Result<Option<BTreeSet<Request>>> {
        self.options
            .audit
            .then(|| audit::read(self.layout.dir()))
            .transpose()
    }

    /// File with the log of a program, which goes on after a restart.
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

    /// The last lines of the log of a program, whether it runs or not.
    pub fn log_tail(&self, component: Component, lines: usize) -> String {
        process::tail(&self.log(component), lines).unwrap_or_default()
    }

    /// Ends everything in the order in which nothing hangs; what does not end in time is killed.
    ///
    /// # Errors
    /// A program that had died before is an error; the others are ended all the same.
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
        self.alive.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program, if it is meant to run and does.
    fn process(&self, component: Component) -> Option<Arc<Process>> {
        let process = self.lock().get(&component).map(Arc::clone);
        process.filter(|process| process.try_exit().is_none())
    }

    /// Removes a program from those that are meant to run, before it is ended.
    fn take(&self, component: Component) -> Result<Arc<Process>> {
        let process = self.lock().remove(&component);
        self.changed.send_replace(());
        process.with_context(|| format!("{} does not run", component.name()))
    }

    /// Waits for a program to die that was meant to run.
    async fn death(&self) -> anyhow::Error {
        let mut changed = self.changed.subscribe();
        loop {
            let processes: Vec<_> = self.lock().values().map(Arc::clone).collect();
            let exit = async { select_all(processes.iter().map(|process| Box::pin(process.exited()))).await };
            tokio::select! {
                biased;
                // A program is taken out before it is ended, so this is seen first.
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
        // With leader election the controllers are built when the replica leads, which it may not while the standby runs.
        let standby = Component::StandbyControllerManager;
        let may_be_standby = component == Component::ControllerManager && self.process(standby).is_some();
        let (path, word) = match may_be_standby {
            true => standby.readiness(),
            false => component.readiness(),
        };
        let mut pause = interval(PROBE_PAUSE);
        pause.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut answer = String::from("nothing yet");
        let ask = async {
            loop {
                pause.tick().await;
                let request = http::Request::get(path)
                    .body(Vec::new())
                    .context("ask for readiness")?;
                answer = match timeout(PROBE, client.request_text(request)).await {
                    Ok(Ok(text)) if text.contains(word) => return Ok(()),
                    Ok(Ok(text)) => text,
                    Ok(Err(error)) => format!("{:#}", anyhow::Error::from(error)),
                    Err(_) => format!("no answer within {PROBE:?}"),
                }
            }
        };
        let asked = timeout(READY, ask).await;
        asked.unwrap_or_else(|_| {
            let tail = process.log_tail(TAIL_LINES);
            bail!(
                "{} was not ready after {READY:?}; it last answered: {answer}; the end of its log:\n{tail}",
                component.name()
            )
        })
    }

    /// A client that talks to the component itself, with the admin's token where there are users.
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
