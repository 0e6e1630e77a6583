//! The driver as a separate process, which is killed when its handle is dropped.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use csi_proto::v1::controller_client::ControllerClient;
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::time;
use tonic::transport::Channel;

use crate::server::{DEADLINE, connect};

/// A running driver; killed when dropped.
pub(crate) struct Program {
    child: Child,
    socket: PathBuf,
}

// === impl Program ===

impl Program {
    /// Starts the driver and waits until its socket is ready.
    pub(crate) async fn start<A: AsRef<OsStr>>(socket: &Path, flags: impl IntoIterator<Item = A>) -> Self {
        let mut command = command(socket);
        command.args(flags);
        Self::run(command, socket).await
    }

    /// Runs a command line that executes the driver, and waits until its socket is ready.
    pub(crate) async fn run(command: Command, socket: &Path) -> Self {
        Self::run_with_stderr(command, socket, Stdio::null()).await
    }

    /// With the log in a file.
    pub(crate) async fn run_with_log(command: Command, socket: &Path, log: &Path) -> Self {
        Self::run_with_stderr(command, socket, std::fs::File::create(log).unwrap().into()).await
    }

    pub(crate) async fn run_with_stderr(mut command: Command, socket: &Path, stderr: Stdio) -> Self {
        let child = command.stderr(stderr).spawn().unwrap();
        drop(command);
        let mut program = Self {
            child,
            socket: socket.to_owned(),
        };
        let ready = async {
            while UnixStream::connect(socket).await.is_err() {
                if let Some(status) = program.child.try_wait().unwrap() {
                    panic!("the driver ended with {status}");
                }
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(DEADLINE, ready)
            .await
            .expect("must become ready in time");
        program
    }

    pub(crate) async fn channel(&self) -> Channel {
        connect(&self.socket).await
    }

    pub(crate) async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel().await)
    }

    /// The root directory as the driver sees it.
    pub(crate) fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.child.id()))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until it exits.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().unwrap() {
                    return status;
                }
                time::sleep(Duration::from_millis(5)).await;
            }
        };
        time::timeout(DEADLINE, ended).await.expect("must end in time")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Fails only if the process has exited.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// The driver's command line with this socket.
pub(crate) fn command(socket: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_csi-mock-driver"));
    command
        // A backtrace of a usage error is useless and takes a second.
        .env_remove("RUST_BACKTRACE")
        .arg(format!("--endpoint=unix://{}", socket.display()))
        .stdin(Stdio::null());
    command
}

/// Runs a command line that must exit.
pub(crate) fn output(socket: &Path, flags: &[&str]) -> Output {
    command(socket).args(flags).output().unwrap()
}
