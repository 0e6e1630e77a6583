//! Keeps a session with the CSI driver open.
//!
//! A lost connection never ends the process. The manager detects it at once, also while no call runs or after a GOAWAY, and
//! opens a new session, which rereads name and capabilities, as soon as a driver responds. Only a driver with another name
//! ends the process, because our finalizers contain the name.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::metrics::Calls;
use super::session::{Connect, Session, Socket};
use super::stream::Loss;
use crate::report::chain;

/// The session; `None` while the driver is not connected.
pub type ConnectionState = Option<Arc<Session>>;

/// Another driver listens on the socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the CSI driver at the socket was {was:?} and is now {is:?}: start an attacher for that one")]
pub struct DriverChanged {
    /// Name of the previous driver.
    pub was: Arc<str>,
    /// Name of the present driver.
    pub is: Arc<str>,
}

/// Keeps one session open.
#[derive(Debug)]
pub struct ConnectionManager<C = Socket> {
    driver: C,
    timeout: Duration,
    state_tx: watch::Sender<ConnectionState>,
    calls: Calls,
}

const INITIAL_BACKOFF: Duration = Duration::from_millis(20);
/// Short enough that an attach starts within a second after a driver's restart; the Go sidecar waits up to 1 s between two
/// dials.
const MAX_BACKOFF: Duration = Duration::from_millis(500);
/// A session that ends sooner is followed by a pause: the server may respond to probes and crash in the first call.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Failed attempts per log line.
const ATTEMPTS_PER_LOG: u32 = 20;

// === impl ConnectionManager ===

impl<C: Connect> ConnectionManager<C> {
    /// A manager for this driver, and its state.
    pub fn new(driver: C, timeout: Duration) -> (Self, watch::Receiver<ConnectionState>) {
        let (state_tx, state) = watch::channel(None);
        (
            Self {
                driver,
                timeout,
                state_tx,
                calls: Calls::default(),
            },
            state,
        )
    }

    /// Metrics of its sessions.
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }

    /// Keeps a session open until `shutdown`.
    ///
    /// # Errors
    ///
    /// [`DriverChanged`] if the socket now belongs to another driver.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), DriverChanged> {
        shutdown.run_until_cancelled(self.keep()).await.unwrap_or(Ok(()))
    }

    async fn keep(self) -> Result<(), DriverChanged> {
        let mut served: Option<Arc<str>> = None;
        loop {
            let (session, loss) = self.open().await;
            match &served {
                Some(was) if *was != session.name => {
                    return Err(DriverChanged {
                        was: was.clone(),
                        is: session.name,
                    });
                }
                Some(_) | None => served = Some(session.name.clone()),
            }
            tracing::info!(driver = %session.name, capabilities = %session.capabilities, "connected to the CSI driver");
            if !session.capabilities.publish {
                tracing::info!(
                    "the driver publishes no volumes (capabilities CONTROLLER_SERVICE and \
                     PUBLISH_UNPUBLISH_VOLUME): VolumeAttachments are attached without a call; with \
                     attachRequired: false in its CSIDriver object there would be none"
                );
            }
            self.calls.connected(&session.name, session.capabilities);
            self.state_tx.send_replace(Some(Arc::new(session)));
            let opened = Instant::now();
            // Running calls keep the old connection until they end.
            loss.cancelled().await;
            self.calls.disconnected();
            self.state_tx.send_replace(None);
            tracing::warn!("lost the connection to the CSI driver; reconnecting");
            if opened.elapsed() < SHORT_LIFE {
                tokio::time::sleep(MAX_BACKOFF).await;
            }
        }
    }

    async fn open(&self) -> (Session, Loss) {
        let mut pause = INITIAL_BACKOFF;
        for attempt in 0u32.. {
            match Session::open(&self.driver, self.timeout, &self.calls).await {
                Ok(opened) => return opened,
                Err(error) => {
                    self.calls.not_connected(chain(&error));
                    if attempt.is_multiple_of(ATTEMPTS_PER_LOG) {
                        tracing::warn!(
                            attempt,
                            error = chain(&error),
                            "CSI driver is not ready; retrying"
                        );
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_BACKOFF);
        }
        unreachable!("attempts must not run out within 68 years")
    }
}
