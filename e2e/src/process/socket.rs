//! Processes that listen on a Unix socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::net::UnixStream;

use super::Process;
use crate::wait::{self, Progress};

/// Waits until a process listens on the socket.
///
/// # Errors
/// No process listens in time.
pub async fn wait_until_listening(socket: &Path, within: Duration) -> Result<()> {
    let what = format!("a process to listen on {}", socket.display());
    wait::poll(within, &what, || async {
        let connected = UnixStream::connect(socket).await;
        Ok(Progress::of(connected.is_ok(), || format!("{connected:?}")))
    })
    .await
}

/// Stops processes by SIGTERM in reverse order, because later ones depend on earlier ones.
///
/// # Errors
/// A process had already exited, did not exit in time, or exited with an error.
pub async fn stop_in_reverse(processes: &[Process], grace: Duration) -> Result<()> {
    for process in processes.iter().rev() {
        process.ensure_alive()?;
        let exit = process.stop(grace).await?;
        ensure!(
            exit.status.success(),
            "the {} ended with {}",
            process.name(),
            exit.status
        );
    }
    Ok(())
}
