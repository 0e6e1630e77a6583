//! The attacher under test: csi-attacher or the Go sidecar, run the same way.
//!
//! An [`AttacherProcess`] runs with the ServiceAccount and the permissions of `deploy/`, never as cluster admin, and both
//! kinds run with the same flags. As in a pod with restart policy Always, it is restarted when it exits by itself (the Go
//! sidecar does so when it loses its driver). An attacher that the scenario crashed or stopped stays down until the
//! scenario revives it.

mod replica;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

pub use replica::{LEASE_DURATION, Processes, Replica, with_host_name};

use crate::mutex::lock;
use crate::process::log::wait_for_lines;
use crate::process::{Exit, Process, Run, Spec};

/// Initial and maximum backoff before an attacher that exited by itself is restarted, as kubelet does but shorter. As
/// with kubelet, the first restart has no backoff.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Timeout of an attacher's shutdown.
const STOP: Duration = Duration::from_secs(20);
/// Timeout of starting a revived attacher.
const START: Duration = Duration::from_secs(20);

/// The kind of attacher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// csi-attacher of this workspace.
    Ours,
    /// The Go external-attacher.
    Go,
}

/// Configuration of an attacher process.
#[derive(Clone, Debug)]
pub struct AttacherSpec {
    /// The kind of attacher.
    pub kind: Kind,
    /// Its program.
    pub binary: PathBuf,
    /// Directory for its log.
    pub dir: PathBuf,
    /// Credentials of its ServiceAccount.
    pub kubeconfig: PathBuf,
    /// Socket of its driver.
    pub socket: PathBuf,
    /// Deadline of its driver calls.
    pub timeout: Duration,
    /// Interval of its ListVolumes calls.
    pub reconcile_sync: Duration,
    /// More flags that both kinds accept.
    pub flags: &'static [&'static str],
    /// More flags that only csi-attacher accepts.
    pub own_flags: &'static [&'static str],
    /// Its leader election, if it is one of several replicas.
    pub replica: Option<Replica>,
}

/// An attacher, up or down.
#[derive(Debug)]
pub struct AttacherProcess {
    kind: Kind,
    shared: Arc<Shared>,
    supervisor: JoinSet<Result<()>>,
    current: watch::Receiver<Option<Arc<Process>>>,
}

#[derive(Debug)]
struct Shared {
    desired_up: watch::Sender<bool>,
    /// Process ids that the harness stopped or killed.
    ended: Mutex<BTreeSet<u32>>,
    /// Exits that the harness did not request.
    unexpected_exits: watch::Sender<Vec<Exit>>,
}

// === impl Kind ===

impl Kind {
    /// Short name, used in test names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Go => "go",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl AttacherSpec ===

impl AttacherSpec {
    fn command(&self) -> Spec {
        let shared = [
            ("--kubeconfig", self.kubeconfig.display().to_string()),
            ("--csi-address", self.socket.display().to_string()),
            ("--timeout", milliseconds(self.timeout)),
            ("--reconcile-sync", milliseconds(self.reconcile_sync)),
            ("--retry-interval-start", "200ms".to_owned()),
            ("--retry-interval-max", "5s".to_owned()),
            ("--worker-threads", "10".to_owned()),
            ("-v", "5".to_owned()),
        ];
        let mut command = match &self.replica {
            None => Spec::new("attacher", &self.binary),
            Some(replica) => replica.command(&self.binary),
        }
        .dir(&self.dir);
        for (flag, value) in shared {
            // As `--flag=value`: Go also accepts `-v 5`, but not for boolean flags.
            command = command.arg(format!("{flag}={value}"));
        }
        command = command.args(self.flags);
        match self.kind {
            Kind::Ours => command.args(self.own_flags),
            // csi-attacher has no client-side rate limit by default.
            Kind::Go => command.args(["--kube-api-qps=1000", "--kube-api-burst=1000"]),
        }
    }
}

// === impl AttacherProcess ===

impl AttacherProcess {
    /// Starts the attacher and restarts it when it exits.
    pub async fn start(run: Arc<Run>, spec: AttacherSpec) -> Result<Self> {
        let shared = Arc::new(Shared {
            desired_up: watch::Sender::new(true),
            ended: Mutex::new(BTreeSet::new()),
            unexpected_exits: watch::Sender::new(Vec::new()),
        });
        let (current_tx, current) = watch::channel(None);
        let kind = spec.kind;
        let mut supervisor = JoinSet::new();
        supervisor.spawn(supervise(run, spec, shared.clone(), current_tx));
        let mut attacher = Self {
            kind,
            shared,
            supervisor,
            current,
        };
        attacher.wait_until_up().await?;
        Ok(attacher)
    }

    /// The kind of attacher.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Kills the attacher (SIGKILL); it stays down until [`Self::revive`].
    ///
    /// # Errors
    /// It was not running, so the crash would not have happened at the intended moment.
    pub async fn crash(&mut self) -> Result<()> {
        let process = self.process()?;
        process.ensure_alive()?;
        self.shared.end(&process);
        process.kill().await?;
        Ok(())
    }

    /// Suspends the attacher (SIGSTOP) until [`Self::resume`].
    pub fn suspend(&self) -> Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// Resumes the attacher after [`Self::suspend`].
    pub fn resume(&self) -> Result<()> {
        self.process()?.signal(Signal::CONT)
    }

    /// Starts the attacher again after [`Self::crash`].
    pub async fn revive(&mut self) -> Result<()> {
        self.shared.desired_up.send_replace(true);
        self.wait_until_up().await
    }

    /// Stops the attacher by SIGTERM, as kubelet does.
    ///
    /// # Errors
    /// It did not exit in time, or csi-attacher exited with a code other than 0. The Go sidecar has no handler and is
    /// killed by the signal (docs/go-sidecar.md#issue-14).
    pub async fn stop(&mut self) -> Result<()> {
        let process = self.process()?;
        self.shared.end(&process);
        if self.kind == Kind::Ours {
            // The signal would kill a replica that was just restarted and has no handler yet.
            tokio::time::timeout(START, process.wait_for_sigterm_handler())
                .await
                .context("our attacher has no handler for SIGTERM")?;
        }
        if process.try_exit().is_none() {
            let started = std::time::Instant::now();
            let exit = process.stop(STOP).await?;
            ensure!(
                started.elapsed() < STOP,
                "the {} attacher had to be killed after {STOP:?}",
                self.kind
            );
            if self.kind == Kind::Ours {
                ensure!(
                    exit.status.success(),
                    "our attacher ended with {} after SIGTERM",
                    exit.status
                );
            }
        }
        self.supervisor.shutdown().await;
        Ok(())
    }

    /// Fails if csi-attacher exited by itself at any time. The Go sidecar may: it exits when it loses its driver.
    pub fn ensure_no_unexpected_exits(&self) -> Result<()> {
        let unexpected_exits = self.shared.unexpected_exits.borrow();
        if self.kind == Kind::Ours && !unexpected_exits.is_empty() {
            let tail = self.log_tail(20);
            bail!(
                "our attacher ended by itself {} times, first with {}\n{tail}",
                unexpected_exits.len(),
                unexpected_exits[0].status
            );
        }
        Ok(())
    }

    /// Number of times that it exited by itself and was restarted.
    pub fn unexpected_exit_count(&self) -> usize {
        self.shared.unexpected_exits.borrow().len()
    }

    /// Waits until it has exited by itself at least `count` times.
    pub async fn wait_for_unexpected_exits(&self, count: usize, within: Duration) -> Result<()> {
        let mut unexpected_exits = self.shared.unexpected_exits.subscribe();
        let enough = unexpected_exits.wait_for(|unexpected_exits| unexpected_exits.len() >= count);
        let waited = tokio::time::timeout(within, enough)
            .await
            .map(|enough| enough.map(drop));
        waited.with_context(|| {
            format!(
                "waited {within:?} for {count} ends, there were {}",
                self.unexpected_exit_count()
            )
        })??;
        Ok(())
    }

    /// Waits until the attacher has logged a line with all of `words`.
    pub async fn wait_for_log(&self, words: &[&str], within: Duration) -> Result<()> {
        let program = format!("the {} attacher", self.kind);
        let process = self.process()?;
        wait_for_lines(&program, process.log(), 0, words, 1, within).await
    }

    /// Kills the attacher if it runs, without a restart.
    pub async fn kill_if_running(&mut self) -> Result<()> {
        self.supervisor.shutdown().await;
        let process = self.process()?;
        if process.try_exit().is_none() {
            process.kill().await?;
        }
        Ok(())
    }

    /// Process ID of the present process.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.process()?.pid())
    }

    /// The last lines of its log.
    pub fn log_tail(&self, lines: usize) -> String {
        self.process()
            .map(|process| process.log_tail(lines))
            .unwrap_or_default()
    }

    fn process(&self) -> Result<Arc<Process>> {
        self.current
            .borrow()
            .clone()
            .context("the attacher was never started")
    }

    async fn wait_until_up(&mut self) -> Result<()> {
        let up = self.current.wait_for(|process| {
            process
                .as_ref()
                .is_some_and(|process| process.try_exit().is_none())
        });
        let result = tokio::time::timeout(START, up).await.map(|up| up.map(drop));
        if let Some(ended) = self.supervisor.try_join_next() {
            ended.context("the attacher's supervisor broke")??;
        }
        result.with_context(|| format!("the {} attacher is not up after {START:?}", self.kind))??;
        Ok(())
    }
}

// === impl Shared ===

impl Shared {
    fn end(&self, process: &Process) {
        lock(&self.ended).insert(process.pid());
        self.desired_up.send_replace(false);
    }
}

// === functions ===

/// A duration in the format of flags.
fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

async fn supervise(
    run: Arc<Run>,
    spec: AttacherSpec,
    shared: Arc<Shared>,
    current: watch::Sender<Option<Arc<Process>>>,
) -> Result<()> {
    let mut desired_up = shared.desired_up.subscribe();
    let mut pause = Duration::ZERO;
    loop {
        desired_up.wait_for(|want| *want).await?;
        let process = Arc::new(Process::spawn(&run, spec.command())?);
        if let Some(replica) = &spec.replica {
            replica.processes.add(process.pid(), &replica.name);
        }
        current.send_replace(Some(process.clone()));
        let exit = process.exited().await;
        if lock(&shared.ended).remove(&process.pid()) {
            pause = Duration::ZERO;
            continue;
        }
        tracing::info!(kind = %spec.kind, status = %exit.status, "attacher ended by itself");
        shared
            .unexpected_exits
            .send_modify(|unexpected_exits| unexpected_exits.push(exit));
        sleep(pause).await;
        pause = (pause * 2).clamp(BACKOFF.0, BACKOFF.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(kind: Kind) -> String {
        let path = PathBuf::from("/x");
        let spec = AttacherSpec {
            kind,
            binary: path.clone(),
            dir: path.clone(),
            kubeconfig: path.clone(),
            socket: path,
            timeout: Duration::from_millis(1500),
            reconcile_sync: Duration::from_secs(60),
            flags: &[],
            own_flags: &["--shutdown-grace=1s"],
            replica: None,
        };
        format!("{:?}", spec.command())
    }

    #[test]
    fn both_get_the_same_flags_and_the_go_one_loses_its_rate_limit() {
        let (ours, go) = (flags(Kind::Ours), flags(Kind::Go));
        for flag in [
            "--timeout=1500ms",
            "--reconcile-sync=60000ms",
            "--retry-interval-start=200ms",
            "--worker-threads=10",
        ] {
            assert!(ours.contains(flag) && go.contains(flag), "{flag}");
        }
        assert!(go.contains("--kube-api-qps=") && !ours.contains("--kube-api-qps="));
        assert!(ours.contains("--shutdown-grace=") && !go.contains("--shutdown-grace="));
    }
}
