//! Processes that listen on a Unix socket.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use super::Process;

/// Between two tries to connect: there is no event for a socket that is listened on.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Waits until a process listens on the socket.
///
/// # Errors
/// None does in time.
pub async fn wait_until_listening(socket: &Path, within: Duration) -> Result<()> {
    let deadline = Instant::now() + within;
    while UnixStream::connect(socket).await.is_err() {
        ensure!(
            Instant::now() < deadline,
            "no process listens on {} after {within:?}",
            socket.display()
        );
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Asks processes to end, the last first, as those that were started later depend on the earlier ones.
///
/// # Errors
/// One had died, did not end in time, or ended with an error.
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
