//! Programs of the system for disks and filesystems.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Their directories, for a process whose PATH lacks `/sbin`.
const DIRECTORIES: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];

/// Maximum number of bytes of a program's output in an error.
const OUTPUT_LIMIT: usize = 400;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{name} is not installed: install the package {package}")]
    Missing {
        name: &'static str,
        package: &'static str,
    },
    #[error("cannot start {name}")]
    Start { name: &'static str, source: io::Error },
    #[error("{name} ended with {status}: {output}")]
    Failed {
        name: &'static str,
        status: String,
        code: Option<i32>,
        output: String,
    },
}

// === impl Program ===

impl Program {
    /// Runs the program and returns its output. Blocks.
    ///
    /// # Errors
    /// It is not installed, cannot be started, or exits with a code that is not in `fine`.
    pub(crate) fn run<A: AsRef<OsStr>>(
        self,
        args: impl IntoIterator<Item = A> + Clone,
        fine: &[i32],
    ) -> Result<String, Error> {
        let output = self.start(args, || Ok(Stdio::null()), Child::wait_with_output)?;
        self.check(output, fine)
    }

    /// As [`Self::run`] for a program that takes long: it is killed when `stop` is cancelled. It inherits the lock, so that nothing
    /// else uses the disk until it has ended, even if this process has ended before.
    pub(crate) fn run_until<A: AsRef<OsStr>>(
        self,
        args: impl IntoIterator<Item = A> + Clone,
        fine: &[i32],
        stop: &CancellationToken,
        lock: Option<&File>,
    ) -> Result<String, Error> {
        let input = || {
            Ok(lock
                .map(File::try_clone)
                .transpose()?
                .map_or_else(Stdio::null, Stdio::from))
        };
        let output = self.start(args, input, |child| {
            let killer = kill_when_stopped(&child, stop.clone());
            let output = child.wait_with_output();
            if let Some(killer) = killer {
                killer.abort();
            }
            output
        })?;
        self.check(output, fine)
    }

    fn check(self, output: Output, fine: &[i32]) -> Result<String, Error> {
        if output.status.code().is_some_and(|code| fine.contains(&code)) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Error::Failed {
            name: self.name,
            status: output.status.to_string(),
            code: output.status.code(),
            output: said(&output),
        })
    }

    fn start<A: AsRef<OsStr>>(
        self,
        args: impl IntoIterator<Item = A> + Clone,
        input: impl Fn() -> io::Result<Stdio>,
        wait: impl FnOnce(Child) -> io::Result<Output>,
    ) -> Result<Output, Error> {
        let failed = |source| Error::Start {
            name: self.name,
            source,
        };
        for directory in DIRECTORIES {
            let mut command = Command::new(format!("{directory}{}", self.name));
            command
                .args(args.clone())
                .env("LC_ALL", "C")
                .stdin(input().map_err(failed)?);
            match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
                Ok(child) => return wait(child).map_err(failed),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(failed(source)),
            }
        }
        Err(Error::Missing {
            name: self.name,
            package: self.package,
        })
    }
}

/// Kills a child process when `stop` is cancelled. `None` outside of a runtime.
fn kill_when_stopped(child: &Child, stop: CancellationToken) -> Option<tokio::task::JoinHandle<()>> {
    let runtime = Handle::try_current().ok()?;
    // Refers to this process even after it was waited for and another one has its id.
    let pid = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
    Some(runtime.spawn(async move {
        stop.cancelled().await;
        // Fails if it has ended.
        pidfd_send_signal(&pid, Signal::KILL).ok();
    }))
}

/// The end of a program's output in one line: errors are last.
fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = text.chars().count().saturating_sub(OUTPUT_LIMIT);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_missing_program_names_its_package() {
        let program = Program {
            name: "mkfs.nothing",
            package: "nothingprogs",
        };
        let error = program.run(["/dev/null"], &[0]).unwrap_err().to_string();
        assert_eq!(
            error,
            "mkfs.nothing is not installed: install the package nothingprogs"
        );
    }

    #[test]
    fn error_has_the_output_and_expected_exit_codes_succeed() {
        let program = Program {
            name: "sh",
            package: "dash",
        };
        let args = ["-c", "echo some; echo trouble >&2; exit 3"];
        let error = program.run(args, &[0]).unwrap_err().to_string();
        assert!(error.contains("some trouble") && error.contains('3'), "{error}");
        assert_eq!(program.run(args, &[0, 3]).unwrap(), "some\n");
    }

    #[tokio::test]
    async fn program_is_killed_when_it_is_to_stop_and_keeps_the_lock_until_then() {
        let lock = tempfile::tempfile().unwrap();
        lock.lock().unwrap();
        let path = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            std::os::fd::AsRawFd::as_raw_fd(&lock)
        );
        let other = File::open(path).unwrap();
        let stop = CancellationToken::new();
        let waiting = {
            let stop = stop.clone();
            tokio::task::spawn_blocking(move || {
                let program = Program {
                    name: "sh",
                    package: "dash",
                };
                let held = lock.try_clone().unwrap();
                drop(lock);
                // Its standard input is the lock.
                program.run_until(["-c", "kill -STOP $$"], &[0], &stop, Some(&held))
            })
        };
        assert!(other.try_lock().is_err());
        stop.cancel();
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Failed { code: None, .. }), "{error}");
        other.lock().unwrap();
    }
}
