//! The helper process that cleans up when the harness cannot.
//!
//! The harness re-executes itself as warden and holds the write end of a pipe to it. The kernel closes that
//! end when the harness is gone, however it went; at the end of the pipe the warden kills every process that
//! carries the run's marker in its environment, which children inherit however far they move away from their
//! parent's process group, and removes the run's directory.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::procfs;

/// Variable that marks the processes of a run; its value is the run's directory.
pub(super) const MARKER: &str = "CSI_E2E_RUN";
/// Variable that turns the executable into a warden; its value is the run's directory. Another name than
/// [`MARKER`], so that a warden does not kill itself.
const WARDEN: &str = "CSI_E2E_WARDEN";
/// What the warden says when it is on guard.
const READY: &[u8] = b"ready\n";
/// What the harness says to have the run's directory kept.
const KEEP: &[u8] = b"keep\n";
/// How long the warden may take to get ready, and to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a killed process may take to be gone before the warden looks around again.
const KILLED: Duration = Duration::from_secs(1);
/// How long a child may take from its fork to its exec, before which it does not carry the marker.
const FORK_TO_EXEC: Duration = Duration::from_millis(100);
/// What to do about an executable that does not turn into a warden.
const FORGOTTEN: &str =
    "the warden did not start: `main` of this executable must begin with `process::warden_main_if_asked()`";

/// The harness's end of the warden.
#[derive(Debug)]
pub(super) struct Warden {
    child: Child,
    pipe: ChildStdin,
    told_to_keep: bool,
}

/// A hunt for the processes that carry one run's marker.
#[derive(Debug)]
pub(super) struct Sweep {
    marker: Vec<u8>,
}

/// Turns this process into a warden if the harness asked for one, and does not return then.
///
/// Must be the first thing in the `main` of every executable that starts a [`Run`](super::Run): the warden is
/// the same executable, started once more.
#[expect(
    clippy::disallowed_methods,
    reason = "asked through the environment: arguments belong to main"
)]
#[expect(clippy::exit, reason = "a warden has no main to return to")]
pub fn warden_main_if_asked() {
    let Some(dir) = std::env::var_os(WARDEN).map(PathBuf::from) else {
        return;
    };
    let done = guard(&dir);
    if let Err(error) = &done {
        // The harness may be gone, and with it the reader of stderr.
        drop(writeln!(
            std::io::stderr(),
            "warden of {}: {error:#}",
            dir.display()
        ));
    }
    std::process::exit(i32::from(done.is_err()));
}

/// The entry of `/proc/<pid>/environ` by which a run's processes are known.
pub(super) fn marker_entry(dir: &Path) -> Vec<u8> {
    let mut entry = OsString::from(MARKER);
    entry.push("=");
    entry.push(dir);
    entry.into_vec()
}

/// The warden's life: get ready, wait for the end of the pipe, clean up.
fn guard(dir: &Path) -> Result<()> {
    // Away from the terminal and from the harness's group, whose signals are not for the warden.
    rustix::process::setsid().context("leave the harness's session")?;
    std::io::stdout()
        .write_all(READY)
        .context("tell the harness that the warden is ready")?;
    std::io::stdout()
        .flush()
        .context("tell the harness that the warden is ready")?;
    let mut wishes = Vec::new();
    std::io::stdin()
        .read_to_end(&mut wishes)
        .context("wait for the end of the harness")?;
    Sweep::new(marker_entry(dir)).kill_all()?;
    if wishes == KEEP {
        return Ok(());
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", dir.display()))
        }
        _ => Ok(()),
    }
}

// === impl Warden ===

impl Warden {
    /// Starts this executable once more, as the warden of the run in `dir`.
    #[expect(
        clippy::disallowed_methods,
        reason = "a warden that starts wardens would never end"
    )]
    pub(super) fn start(dir: &Path) -> Result<Self> {
        ensure!(std::env::var_os(WARDEN).is_none(), "{FORGOTTEN}");
        // Still the right file if it was replaced on disk since.
        let mut child = Command::new("/proc/self/exe")
            .env(WARDEN, dir)
            // A harness may itself be a process of a run; its warden must outlive it all the same.
            .env_remove(MARKER)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start the warden")?;
        let pipe = child.stdin.take().expect("stdin must be piped");
        let mut answer = child.stdout.take().expect("stdout must be piped");
        let mut said = [0; READY.len()];
        let ready =
            readable_within(&answer, PATIENCE)? && answer.read_exact(&mut said).is_ok() && said == READY;
        if !ready {
            child.kill().context("end a warden that is none")?;
            child.wait().context("reap a warden that is none")?;
            bail!("{FORGOTTEN}");
        }
        Ok(Self {
            child,
            pipe,
            told_to_keep: false,
        })
    }

    /// Has the warden leave the run's directory where it is.
    pub(super) fn keep_files(&mut self) -> Result<()> {
        // Once is enough, and the warden knows no more.
        if !self.told_to_keep {
            self.pipe
                .write_all(KEEP)
                .context("tell the warden to keep the run's files")?;
            self.told_to_keep = true;
        }
        Ok(())
    }

    /// Lets the warden clean up and waits for its end.
    pub(super) fn dismiss(self) -> Result<()> {
        let Self { mut child, pipe, .. } = self;
        let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).context("watch the warden")?;
        drop(pipe);
        if !readable_within(&ended, PATIENCE)? {
            child.kill().context("end a warden that hangs")?;
        }
        let status = child.wait().context("reap the warden")?;
        ensure!(
            status.success(),
            "the warden ended with {status}; what it says is on stderr"
        );
        Ok(())
    }
}

// === impl Sweep ===

impl Sweep {
    pub(super) fn new(marker: Vec<u8>) -> Self {
        Self { marker }
    }

    /// Kills every process that carries the marker, until none is found any more.
    pub(super) fn kill_all(&self) -> Result<()> {
        loop {
            self.kill_found()?;
            std::thread::sleep(FORK_TO_EXEC);
            if self.found()?.is_empty() {
                return Ok(());
            }
        }
    }

    /// The processes that still carry the marker after they were given until `patience` to end.
    pub(super) fn survivors(&self, patience: Duration) -> Result<Vec<Pid>> {
        let deadline = Instant::now() + patience;
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

    /// Marked processes, each with a descriptor that cannot come to mean another process.
    fn found(&self) -> Result<Vec<(Pid, OwnedFd)>> {
        let marked =
            || procfs::with_environment(&self.marker).context("look for the run's processes in /proc");
        let mut found = Vec::new();
        for pid in marked()? {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(process) => found.push((pid, process)),
                Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error).context("open a process of the run"),
            }
        }
        // An id may have changed hands between the look and the opening, but not since.
        let still = if found.is_empty() { Vec::new() } else { marked()? };
        found.retain(|(pid, _)| still.contains(pid));
        Ok(found)
    }
}

/// Waits until the descriptor is readable, which a pidfd is when its process has ended.
fn readable_within(descriptor: &impl AsFd, patience: Duration) -> Result<bool> {
    let deadline = Instant::now() + patience;
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
