//! Exit of the driver by a fault rule or the admin API.

use tokio::sync::watch;

use crate::fault::Exit;

/// The first exit request.
#[derive(Debug)]
pub struct ExitOrder(watch::Sender<Option<Exit>>);

// === impl ExitOrder ===

impl Default for ExitOrder {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl ExitOrder {
    /// Ends the driver at once without waiting for running calls. Confirmed changes are durable.
    pub fn order(&self, how: Exit) {
        if how == Exit::Kill {
            let own = rustix::process::getpid();
            if let Err(error) = rustix::process::kill_process(own, rustix::process::Signal::KILL) {
                tracing::error!(%error, "cannot kill the own process");
            }
        }
        self.0.send_if_modified(|order| {
            let first = order.is_none();
            order.get_or_insert(how);
            first
        });
    }

    /// Waits for the request.
    pub(crate) async fn ordered(&self) -> Exit {
        let mut order = self.0.subscribe();
        match order.wait_for(Option::is_some).await.map(|order| *order) {
            Ok(Some(how)) => how,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}
