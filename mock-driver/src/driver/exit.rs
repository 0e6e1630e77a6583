//! Exit of the driver by a fault rule or the admin API.

use tokio::sync::SetOnce;

use crate::fault::Exit;

#[derive(Debug, Default)]
pub struct ExitRequest(SetOnce<Exit>);

// === impl ExitRequest ===

impl ExitRequest {
    /// Ends the driver at once without waiting for running calls. Confirmed changes are durable.
    pub fn request(&self, how: Exit) {
        if how == Exit::Kill {
            // SIGKILL loses queued lines; those of the journal are written before the calls continue.
            crate::log::flush();
            let own = rustix::process::getpid();
            if let Err(error) = rustix::process::kill_process(own, rustix::process::Signal::KILL) {
                tracing::error!(%error, "cannot kill the own process");
            }
        }
        self.0.set(how).ok();
    }

    pub(crate) async fn requested(&self) -> Exit {
        *self.0.wait().await
    }
}
