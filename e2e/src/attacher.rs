//! The attacher under test: ours, or the Go one, run the same way.
//!
//! An [`AttacherProcess`] runs under the ServiceAccount and the permissions of `deploy/`, never as cluster admin, and with
//! the same flags whichever it is. As in a pod with restart policy Always, it is started again when it ends
//! by itself (the Go one does so when it loses its driver); an attacher that was crashed or stopped on purpose
//! stays down until it is revived.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::process::log::wait_for_lines;
use crate::process::{self, Exit, Process, Run, Spec};

/// First and longest pause before an attacher that ended by itself is started again, as kubelet does but in
/// fast motion. The very first restart has no pause, as kubelet's has not.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// How long an attacher may take to end when asked to.
const STOP: Duration = Duration::from_secs(20);
/// How long a revived attacher may take to be a process again.
const START: Duration = Duration::from_secs(20);

/// How long a replica's lease lasts without a sign of life of its holder.
pub const LEASE_DURATION: Duration = Duration::from_secs(3);
const RENEW_DEADLINE: Duration = Duration::from_secs(2);
const RETRY_PERIOD: Duration = Duration::from_millis(500);

/// Which attacher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// csi-attacher of this workspace.
    Ours,
    /// The Go external-attacher.
    Go,
}

/// How an attacher is run.
#[derive(Clone, Debug)]
pub struct AttacherSpec {
    /// Which attacher.
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
    /// How often it asks the driver where its volumes are.
    pub reconcile_sync: Duration,
    /// More flags, as both kinds take them.
    pub flags: &'static [&'static str],
    /// More flags, which ours alone takes.
    pub own_flags: &'static [&'static str],
    /// How it is one of several, if it is.
    pub replica: Option<Replica>,
}

/// One of several attachers that elect a leader. As a pod has, it has a host name of its own, which is its
/// identity in the lease.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Its host name.
    pub name: String,
    /// Namespace of the lease.
    pub namespace: String,
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
    /// Processes that were ended on purpose.
    ended: Mutex<BTreeSet<u32>>,
    /// Exits that the harness did not request.
    unexpected_exits: watch::Sender<Vec<Exit>>,
}

// === impl Kind ===

impl Kind {
    /// Short name, as it stands in test names.
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
        let timeout = format!("{}ms", self.timeout.as_millis());
        let reconcile_sync = format!("{}ms", self.reconcile_sync.as_millis());
        let shared = [
            ("--kubeconfig", self.kubeconfig.display().to_string()),
            ("--csi-address", self.socket.display().to_string()),
            ("--timeout", timeout),
            ("--reconcile-sync", reconcile_sync),
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
            // One word each: Go's flags take `-v 5` too, but not for booleans.
            command = command.arg(format!("{flag}={value}"));
        }
        command = command.args(self.flags);
        match self.kind {
            Kind::Ours => command.args(self.own_flags),
            // Ours has no client-side rate limit unless asked for one.
            Kind::Go => command.args(["--kube-api-qps=1000", "--kube-api-burst=1000"]),
        }
    }
}

// === impl Replica ===

impl Replica {
    /// The program with the replica's host name and its part in the election. The process stays the one that is
    /// started: every step on the way there replaces itself by the next.
    fn command(&self, binary: &Path) -> Spec {
        let command = with_host_name(&format!("attacher-{}", self.name));
        let seconds = |time: Duration| format!("{}ms", time.as_millis());
        command
            .args(["sh", "-c", "hostname \"$0\" && exec \"$@\"", &self.name])
            .arg(binary)
            .args([
                "--leader-election".to_owned(),
                format!("--leader-election-namespace={}", self.namespace),
                format!("--leader-election-lease-duration={}", seconds(LEASE_DURATION)),
                format!("--leader-election-renew-deadline={}", seconds(RENEW_DEADLINE)),
                format!("--leader-election-retry-period={}", seconds(RETRY_PERIOD)),
            ])
    }
}

/// The beginning of a command that may choose its own host name, which is an attacher's identity in a lease. Others
/// than root need user namespaces for that, which some systems forbid by default (Ubuntu 24.04:
/// `sysctl kernel.apparmor_restrict_unprivileged_userns=0`).
pub fn with_host_name(name: &str) -> Spec {
    let command = Spec::new(name, "unshare").arg("--uts");
    if rustix::process::geteuid().is_root() {
        command.arg("--")
    } else {
        command.args(["--user", "--map-root-user", "--"])
    }
}

// === impl AttacherProcess ===

impl AttacherProcess {
    /// Starts the attacher and keeps it up.
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

    /// Which attacher it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Kills the attacher (-9) and leaves it dead until [`Self::revive`].
    ///
    /// # Errors
    /// It was not running: the crash would not have been at the moment the scenario is about.
    pub async fn crash(&mut self) -> Result<()> {
        let process = self.process()?;
        process.ensure_alive()?;
        self.shared.end(&process);
        process.kill().await?;
        Ok(())
    }

    /// Stops it where it stands (SIGSTOP), until [`Self::resume`].
    pub fn suspend(&self) -> Result<()> {
        self.process()?.signal(Signal::STOP)
    }

    /// Lets it go on after [`Self::suspend`].
    pub fn resume(&self) -> Result<()> {
        self.process()?.signal(Signal::CONT)
    }

    /// Starts the attacher again after [`Self::crash`].
    pub async fn revive(&mut self) -> Result<()> {
        self.shared.desired_up.send_replace(true);
        self.wait_until_up().await
    }

    /// Asks the attacher to end (SIGTERM), as kubelet does.
    ///
    /// # Errors
    /// It did not end in time, or ours ended with another code than 0. The Go one has no handler and dies of
    /// the signal (docs/go-sidecar.md#issue-14).
    pub async fn stop(&mut self) -> Result<()> {
        let process = self.process()?;
        self.shared.end(&process);
        if self.kind == Kind::Ours {
            // A replica that was restarted a moment ago would die of the signal.
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
                    "our attacher ended with {} when asked to stop",
                    exit.status
                );
            }
        }
        self.supervisor.shutdown().await;
        Ok(())
    }

    /// Fails if ours ended by itself at any time. The Go one may: it does when its driver goes away.
    pub fn ensure_no_unexpected_exits(&self) -> Result<()> {
        let unexpected_exits = self.shared.unexpected_exits.borrow();
        if self.kind == Kind::Ours && !unexpected_exits.is_empty() {
            let tail = self
                .process()
                .map(|process| process.log_tail(20))
                .unwrap_or_default();
            bail!(
                "our attacher ended by itself {} times, first with {}\n{tail}",
                unexpected_exits.len(),
                unexpected_exits[0].status
            );
        }
        Ok(())
    }

    /// How often it ended by itself and was started again.
    pub fn unexpected_exit_count(&self) -> usize {
        self.shared.unexpected_exits.borrow().len()
    }

    /// Waits until it has ended by itself at least `count` times.
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
        let read = || Ok(process::tail(self.process()?.log(), usize::MAX).unwrap_or_default());
        wait_for_lines(&program, words, 1, within, read).await
    }

    /// Files with what the attacher wrote.
    pub fn log_files(&self) -> Vec<PathBuf> {
        let process = self.current.borrow();
        process
            .iter()
            .flat_map(|process| [process.log().to_owned(), process.stdout().to_owned()])
            .collect()
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
