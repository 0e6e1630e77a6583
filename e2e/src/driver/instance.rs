//! One process of the mock driver: started, restarted and stopped.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use csi_proto::v1::ProbeRequest;
use csi_proto::v1::identity_client::IdentityClient;
use tokio::time::timeout;
use tonic::transport::Channel;

use super::journal::Journal;
use super::{CALL, connect};
use crate::process::{Process, Run, Spec};
use crate::wait::{self, Progress};

/// Timeout of the driver's first Probe.
const START: Duration = Duration::from_secs(20);
/// Timeout of its shutdown.
const STOP: Duration = Duration::from_secs(10);

/// A process of the mock driver, running or not. Socket and journal stay the same over restarts.
#[derive(Debug)]
pub(super) struct Instance {
    run: Arc<Run>,
    process: Process,
    journal: Journal,
    channel: Channel,
}

// === impl Instance ===

impl Instance {
    /// Starts the process and waits until it is ready.
    ///
    /// # Errors
    /// The program cannot be started, exits, or is not ready in time.
    pub(super) async fn start(run: Arc<Run>, command: Spec, socket: &Path, journal: &Path) -> Result<Self> {
        let journal = Journal::create(journal)?;
        let instance = Self {
            process: Process::spawn(&run, command)?,
            run,
            journal,
            channel: connect(socket.to_owned()),
        };
        instance.wait_until_ready().await?;
        Ok(instance)
    }

    /// Starts it again, after it was killed, and waits until it is ready.
    pub(super) async fn restart(&mut self, command: Spec) -> Result<()> {
        ensure!(!self.is_running(), "{} still runs", self.process.name());
        self.process = Process::spawn(&self.run, command)?;
        self.wait_until_ready().await
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let what = format!("{} to be ready", self.process.name());
        let probe = wait::poll(START, &what, || async {
            let mut identity = IdentityClient::new(self.channel.clone());
            Ok(match timeout(CALL, identity.probe(ProbeRequest {})).await {
                Ok(Ok(probe)) if probe.get_ref().ready != Some(false) => Progress::Reached(()),
                Ok(Ok(_)) => Progress::Pending("the response to Probe is ready=false".to_owned()),
                Ok(Err(status)) => Progress::Pending(status.to_string()),
                Err(_) => Progress::Pending(format!("no response in {CALL:?}")),
            })
        });
        self.process.while_alive(probe).await
    }

    pub(super) fn is_running(&self) -> bool {
        self.process.try_exit().is_none()
    }

    /// Kills the process by SIGKILL.
    pub(super) async fn kill(&self) -> Result<()> {
        self.process.kill().await.map(drop)
    }

    /// Stops the process.
    ///
    /// # Errors
    /// It did not exit in time, or with an error.
    pub(super) async fn stop(&self) -> Result<()> {
        self.process.ensure_alive()?;
        let exit = self.process.stop(STOP).await?;
        ensure!(
            exit.status.success(),
            "{} ended with {} after SIGTERM",
            self.process.name(),
            exit.status
        );
        Ok(())
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }
}
