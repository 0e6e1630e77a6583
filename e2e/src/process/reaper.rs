//! A helper process that cleans up if the harness cannot.
//!
//! The harness re-executes itself as reaper and holds the write end of a pipe to it. When the harness exits for
//! any reason, the kernel closes that end; at EOF the reaper kills every process with the run's marker in its
//! environment, which children inherit even in other process groups, and removes the run's kernel objects and
//! directory.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::loop_devices::LoopDeviceTracker;
use super::{leftovers, procfs};

/// Variable that marks the processes of a run; its value is the run's directory.
pub(super) const MARKER: &str = "CSI_E2E_RUN";
/// Variable that makes the executable run as reaper; its value is the run's directory. Its name differs from
/// [`MARKER`], so that a reaper does not kill itself.
const REAPER: &str = "CSI_E2E_REAPER";
/// The reaper's message when it is ready.
const READY: &[u8] = b"ready\n";
/// The harness's message to keep the run's directory.
const KEEP: &[u8] = b"keep\n";
/// Timeout of the reaper's start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout of the reaper's clean-up: on a busy disk, removing the data of dozens of etcds takes minutes.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(300);
/// Period of scanning for new loop devices.
const RECORD_INTERVAL: Duration = Duration::from_millis(100);
/// Timeout of a killed process's exit before the reaper scans again.
const KILLED: Duration = Duration::from_secs(1);
/// Maximum time between fork and exec of a child, which has no marker before its exec.
const FORK_TO_EXEC: Duration = Duration::from_millis(100);
/// Error about an executable that does not call [`reaper_main_if_requested`].
const NOT_STARTED: &str = "the reaper did not start: `main` of this executable must begin with `process::reaper_main_if_requested()`";

/// The harness's handle of the reaper.
#[derive(Debug)]
pub(super) struct Reaper {
    child: Child,
    pipe: ChildStdin,
    keep: bool,
}

/// Finds and kills the processes with the marker of one run.
#[derive(Debug)]
pub(super) struct MarkedProcesses {
    /// The run's directory, the value of [`MARKER`].
    run: PathBuf,
}

/// Runs as the reaper, and does not return, if the harness requested it.
///
/// Must be the first call in the `main` of every executable that starts a [`Run`](super::Run): the reaper is a
/// second process of the same executable.
#[expect(
    clippy::disallowed_methods,
    reason = "asked through the environment: arguments belong to main"
)]
#[expect(clippy::exit, reason = "a reaper has no main to return to")]
pub fn reaper_main_if_requested() {
    let Some(dir) = std::env::var_os(REAPER).map(PathBuf::from) else {
        return;
    };
    let done = guard(&dir);
    if let Err(error) = &done {
        // The harness, which reads stderr, may have exited.
        drop(writeln!(
            std::io::stderr(),
            "reaper of {}: {error:#}",
            dir.display()
        ));
    }
    std::process::exit(i32::from(done.is_err()));
}

/// The reaper's main function: prepares, waits for EOF of the pipe, and cleans up.
fn guard(dir: &Path) -> Result<()> {
    // Leave the terminal and the harness's process group, whose signals must not reach the reaper.
    rustix::process::setsid().context("leave the harness's session")?;
    std::io::stdout()
        .write_all(READY)
        .context("report readiness to the harness")?;
    std::io::stdout()
        .flush()
        .context("report readiness to the harness")?;
    let command = wait_for_end(dir)?;
    MarkedProcesses::of(dir).kill_all()?;
    leftovers::remove(dir)?;
    if command == KEEP {
        return Ok(());
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Waits for EOF of the pipe, and records the run's loop devices meanwhile; returns the harness's message.
fn wait_for_end(dir: &Path) -> Result<Vec<u8>> {
    let mut stdin = std::io::stdin().lock();
    let mut tracker = LoopDeviceTracker::new(dir);
    let (mut written, mut part) = (Vec::new(), [0; KEEP.len()]);
    loop {
        // The rest must be cleaned up even if recording fails.
        if let Err(error) = tracker.record() {
            drop(writeln!(
                std::io::stderr(),
                "reaper of {}: {error:#}",
                dir.display()
            ));
        }
        if readable_within(&stdin, RECORD_INTERVAL)? {
            match stdin.read(&mut part).context("wait for the end of the harness")? {
                0 => return Ok(written),
                length => written.extend_from_slice(&part[..length]),
            }
        }
    }
}

// === impl Reaper ===

impl Reaper {
    /// Executes this executable as the reaper of the run in `dir`.
    #[expect(
        clippy::disallowed_methods,
        reason = "a reaper that starts reapers would never end"
    )]
    pub(super) fn start(dir: &Path) -> Result<Self> {
        ensure!(std::env::var_os(REAPER).is_none(), "{NOT_STARTED}");
        // The running executable, even if the file on disk was replaced.
        let mut child = Command::new("/proc/self/exe")
            .env(REAPER, dir)
            // A harness may itself be a process of another run; its reaper must outlive it nevertheless.
            .env_remove(MARKER)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the reaper")?;
        let pipe = child.stdin.take().expect("stdin must be piped");
        let mut stdout = child.stdout.take().expect("stdout must be piped");
        let mut line = [0; READY.len()];
        let ready =
            readable_within(&stdout, START_TIMEOUT)? && stdout.read_exact(&mut line).is_ok() && line == READY;
        if !ready {
            child.kill().context("end a reaper that is none")?;
            child.wait().context("reap a reaper that is none")?;
            bail!("{NOT_STARTED}");
        }
        Ok(Self {
            child,
            pipe,
            keep: false,
        })
    }

    /// Makes the reaper keep the run's directory.
    pub(super) fn keep_files(&mut self) -> Result<()> {
        // The message was already sent.
        if !self.keep {
            self.pipe
                .write_all(KEEP)
                .context("have the reaper keep the run's files")?;
            self.keep = true;
        }
        Ok(())
    }

    /// Makes the reaper clean up, and waits for its exit.
    pub(super) fn stop(self) -> Result<()> {
        let Self { mut child, pipe, .. } = self;
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context("watch the reaper")?;
        drop(pipe);
        if !readable_within(&ended, CLEANUP_TIMEOUT)? {
            child.kill().context("kill a reaper that hangs")?;
            child.wait().context("wait for a killed reaper")?;
            bail!("the reaper did not clean up within {CLEANUP_TIMEOUT:?}");
        }
        let status = child.wait().context("reap the reaper")?;
        ensure!(
            status.success(),
            "the reaper ended with {status}; its messages are on stderr"
        );
        Ok(())
    }
}

// === impl MarkedProcesses ===

impl MarkedProcesses {
    pub(super) fn of(run: &Path) -> Self {
        Self { run: run.to_owned() }
    }

    /// Kills every process with the marker, until no scan finds one.
    pub(super) fn kill_all(&self) -> Result<()> {
        loop {
            self.kill_found()?;
            std::thread::sleep(FORK_TO_EXEC);
            if self.found()?.is_empty() {
                return Ok(());
            }
        }
    }

    /// The processes with the marker that are still running after `within`.
    pub(super) fn remaining_processes(&self, within: Duration) -> Result<Vec<Pid>> {
        let deadline = Instant::now() + within;
        for (_, process) in self.found()? {
            readable_within(&process, deadline.saturating_duration_since(Instant::now()))?;
        }
        Ok(self.found()?.into_iter().map(|(pid, _)| pid).collect())
    }

    fn kill_found(&self) -> Result<()> {
        loop {
            let found = self.found()?;
            if found.is_empty() {
                return Ok(());
            }
            for (pid, process) in &found {
                match pidfd_send_signal(process, Signal::KILL) {
                    Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                    Err(error) => {
                        return Err(error).with_context(|| format!("kill process {}", pid.as_raw_nonzero()));
                    }
                }
            }
            for (_, process) in &found {
                readable_within(process, KILLED)?;
            }
        }
    }

    /// Marked processes, each with a pidfd, which cannot refer to another process.
    fn found(&self) -> Result<Vec<(Pid, OwnedFd)>> {
        let marked = || {
            procfs::with_environment(MARKER.as_ref(), self.run.as_os_str())
                .context("look for the run's processes in /proc")
        };
        let mut found = Vec::new();
        for pid in marked()? {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(process) => found.push((pid, process)),
                Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).context("open a process of the run"),
            }
        }
        // The id may have been reused before the pidfd was opened, but not since.
        let still = if found.is_empty() { Vec::new() } else { marked()? };
        found.retain(|(pid, _)| still.contains(pid));
        Ok(found)
    }
}

/// Waits until the descriptor is readable, which a pidfd is when its process has ended.
pub(crate) fn readable_within(descriptor: &impl AsFd, within: Duration) -> Result<bool> {
    let deadline = Instant::now() + within;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).context("a deadline beyond the clock's range")?;
        let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error).context("wait for a process"),
        }
    }
}
