//! Child processes that cannot outlive the harness.
//!
//! A [`Run`] owns a temporary directory, a marker and a reaper. Every [`Process`] belongs to a run, leads its own process group
//! and writes its output to files in the run's directory.
//!
//! Invariants:
//! - A process group is killed before its leader is reaped, so no descendant outlives it, and no signal reaches an unrelated
//!   process with a reused id.
//! - When the harness exits for any reason, every process with the run's marker is killed: by [`Run::finish`] after success,
//!   otherwise by the reaper.

mod command;
pub(crate) mod leftovers;
pub(crate) mod log;
pub(crate) mod loop_devices;
mod procfs;
mod reaper;
mod run;
mod script;
mod socket;
mod spec;

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::mutex::lock;
use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::sync::watch;

pub use command::{stdout_of, stdout_of_blocking};
pub use procfs::processes_of;
pub(crate) use reaper::readable_within;
pub use reaper::reaper_main_if_requested;
pub use run::Run;
pub use script::write_script;
pub use socket::{stop_in_reverse, wait_until_listening};
pub use spec::Spec;

/// Number of log lines in an error about a process.
const TAIL_LINES: usize = 25;
/// Maximum size of the end of a log that is searched for its last lines.
const TAIL_BYTES: u64 = 1 << 20;

/// Proxy variables, which processes do not inherit: they communicate over loopback.
const PROXIES: [&str; 6] = [
    "HTTP_PROXY",
    "http_proxy",
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// A running or exited child process, the leader of its process group.
///
/// Dropping it kills the group.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    log: PathBuf,
    stdout: PathBuf,
    shared: Arc<Shared>,
    exit: watch::Receiver<Option<Exit>>,
}

/// Exit status of a process and its resource usage.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    /// Exit code or signal.
    pub status: ExitStatus,
    /// Processor time at the end; peak memory as of the last [`Process::usage`] before the end.
    pub usage: Usage,
}

/// Resource usage of a process, without its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time in user and kernel mode.
    pub cpu: Duration,
    /// Largest resident set so far, in bytes.
    pub peak_rss: u64,
}

/// State that the waiter thread and the handle share.
#[derive(Debug)]
struct Shared {
    /// Whether the leader was reaped, after which its id may belong to another process. Locked while a signal is sent, so that
    /// the leader is not reaped meanwhile.
    reaped: Mutex<bool>,
    /// Largest observed resident set.
    peak_rss: Mutex<u64>,
}

// === impl Process ===

impl Process {
    /// Starts `spec` as a child of this run, with stdout and stderr appended to `<name>.stdout` and
    /// `<name>.log`.
    pub fn spawn(run: &Run, spec: Spec) -> Result<Self> {
        let dir = spec.dir.unwrap_or_else(|| run.dir().to_owned());
        let (log, stdout) = (
            dir.join(format!("{}.log", spec.name)),
            dir.join(format!("{}.stdout", spec.name)),
        );
        let mut command = Command::new(&spec.program);
        if let Some(arg0) = &spec.arg0 {
            command.arg0(arg0);
        }
        for proxy in PROXIES {
            command.env_remove(proxy);
        }
        let (marker, value) = run.marker();
        command
            .args(&spec.args)
            .envs(spec.env)
            .env(marker, value)
            .current_dir(&dir)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(append_to(&stdout)?)
            .stderr(append_to(&log)?);
        let child = command
            .spawn()
            .with_context(|| format!("start {} ({})", spec.name, spec.program.display()))?;
        let pid = Pid::from_child(&child);
        let shared = Arc::new(Shared {
            reaped: Mutex::new(false),
            peak_rss: Mutex::new(0),
        });
        let (exit_tx, exit) = watch::channel(None);
        let waiter = Arc::clone(&shared);
        std::thread::Builder::new()
            .name(format!("wait-{}", spec.name))
            .spawn(move || {
                let exit = waiter.wait(child, pid);
                exit_tx.send_replace(Some(exit));
            })
            .context("start the thread that waits for a child")?;
        Ok(Self {
            name: spec.name,
            pid,
            log,
            stdout,
            shared,
            exit,
        })
    }

    /// Name given in the [`Spec`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id, which is also the id of the group.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// File with the process's stderr.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// File with the process's stdout.
    pub fn stdout(&self) -> &Path {
        &self.stdout
    }

    /// The last lines of the log, or of stdout if the log is empty.
    pub fn log_tail(&self, lines: usize) -> String {
        [&self.log, &self.stdout]
            .into_iter()
            .map(|path| tail(path, lines).unwrap_or_default())
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    }

    /// The exit status, if the process has ended.
    pub fn try_exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Waits until the process has ended. Several tasks may wait concurrently.
    pub async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        let seen = exit
            .wait_for(Option::is_some)
            .await
            .expect("the waiter thread must report an exit");
        seen.expect("the wait must end with an exit")
    }

    /// Waits until the process has ended; after `deadline`, fails with its last log lines.
    pub async fn exited_within(&self, deadline: Duration) -> Result<Exit> {
        match tokio::time::timeout(deadline, self.exited()).await {
            Ok(exit) => Ok(exit),
            Err(_) => bail!(
                "{} still runs after {deadline:?}{}",
                self.described(),
                self.quoted_tail()
            ),
        }
    }

    /// Fails with the last log lines if the process has ended.
    pub fn ensure_alive(&self) -> Result<()> {
        match self.try_exit() {
            None => Ok(()),
            Some(exit) => Err(self.died(exit)),
        }
    }

    /// Runs `work`; fails with the last log lines if the process ends first.
    pub async fn while_alive<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            exit = self.exited() => Err(self.died(exit)),
            result = work => result,
        }
    }

    /// Processor time and peak memory so far.
    pub fn usage(&self) -> Usage {
        if let Some(exit) = self.try_exit() {
            return exit.usage;
        }
        Usage {
            cpu: procfs::cpu_time(self.pid).unwrap_or_default(),
            peak_rss: self.shared.observe_rss(self.pid),
        }
    }

    /// Waits until the process has a handler for SIGTERM, or has ended.
    pub async fn wait_for_sigterm_handler(&self) {
        let mut poll = tokio::time::interval(Duration::from_millis(10));
        while self.try_exit().is_none() && !procfs::handles_sigterm(self.pid) {
            poll.tick().await;
        }
    }

    /// Sends a signal to every process of the group; does nothing if the leader has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.shared
            .signal(self.pid, signal)
            .with_context(|| format!("send {signal:?} to {}", self.described()))
    }

    /// Sends SIGTERM to the group, and SIGKILL if its leader has not ended within `grace`.
    pub async fn stop(&self, grace: Duration) -> Result<Exit> {
        self.usage();
        self.signal(Signal::TERM)?;
        match tokio::time::timeout(grace, self.exited()).await {
            Ok(exit) => Ok(exit),
            Err(_) => self.kill().await,
        }
    }

    /// Sends SIGKILL to the group, as the kernel's OOM killer does.
    pub async fn kill(&self) -> Result<Exit> {
        self.usage();
        self.signal(Signal::KILL)?;
        Ok(self.exited().await)
    }

    fn died(&self, exit: Exit) -> anyhow::Error {
        anyhow::anyhow!(
            "{} ended unexpectedly with {}{}",
            self.described(),
            exit.status,
            self.quoted_tail()
        )
    }

    fn described(&self) -> String {
        format!("{} (pid {})", self.name, self.pid())
    }

    fn quoted_tail(&self) -> String {
        let lines = self.log_tail(TAIL_LINES);
        if lines.is_empty() {
            return format!("; it wrote nothing to {}", self.log.display());
        }
        let mut quoted = format!("; the last lines of {}:", self.log.display());
        for line in lines.lines() {
            quoted.push_str("\n    | ");
            quoted.push_str(line);
        }
        quoted
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.signal(Signal::KILL) {
            tracing::warn!(process = self.name, "{error:#}");
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Waits until the leader has ended, kills the rest of its group and only then reaps the leader: while the leader is a
    /// zombie, its id, which is also the group's, cannot be reused.
    fn wait(&self, mut child: Child, pid: Pid) -> Exit {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let waited = rustix::io::retry_on_intr(|| rustix::process::waitid(WaitId::Pid(pid), ended));
        let cpu = procfs::cpu_time(pid).unwrap_or_default();
        let mut reaped = lock(&self.reaped);
        if let Err(error) = waited.and_then(|_| kill_group(pid, Signal::KILL)) {
            tracing::warn!(pid = pid.as_raw_nonzero(), %error, "could not kill the group of an ended process");
        }
        let status = child.wait().unwrap_or_else(|error| {
            tracing::warn!(pid = pid.as_raw_nonzero(), %error, "could not reap an ended process");
            ExitStatus::from_raw(-1)
        });
        *reaped = true;
        Exit {
            status,
            usage: Usage {
                cpu,
                peak_rss: self.observe_rss(pid),
            },
        }
    }

    fn signal(&self, pid: Pid, signal: Signal) -> rustix::io::Result<()> {
        let reaped = lock(&self.reaped);
        if *reaped { Ok(()) } else { kill_group(pid, signal) }
    }

    fn observe_rss(&self, pid: Pid) -> u64 {
        let mut peak = lock(&self.peak_rss);
        *peak = (*peak).max(procfs::peak_rss(pid).unwrap_or(0));
        *peak
    }
}

// === addresses ===

/// An address on loopback for a program that cannot choose its port. Another process may bind it
/// first; then the program exits with an error.
///
/// # Errors
/// There is none.
pub fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    listener.local_addr().context("get the port number")
}

// === signals and logs ===

/// A group that consists of a zombie only counts as killed.
fn kill_group(pid: Pid, signal: Signal) -> rustix::io::Result<()> {
    match rustix::process::kill_process_group(pid, signal) {
        Err(rustix::io::Errno::SRCH) => Ok(()),
        result => result,
    }
}

fn append_to(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("open the log {}", path.display()))
}

/// The last lines of a file, within its last mebibyte.
pub(crate) fn tail(path: &Path, lines: usize) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let all: Vec<&str> = text.lines().collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
}
