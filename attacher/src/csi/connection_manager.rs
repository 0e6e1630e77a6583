//! Keeps a session with the CSI driver open.
//!
//! The loss of a driver never ends the process: it is noticed at once, also while no call is under way or old ones
//! still finish on a connection that the driver is about to close, and a new session is opened as soon as a driver
//! answers, by asking everything again. Only a driver that comes back as another one ends it, since our finalizers
//! carry its name.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::metrics::Calls;
use super::session::{OpenError, Session, Socket};
use super::stream::Loss;
use crate::report::chain;

/// The state of the connection.
#[derive(Clone, Debug, Default)]
pub enum ConnectionState {
    /// There is no driver to call.
    #[default]
    Down,
    /// The driver can be called.
    Up(Arc<Session>),
}

/// The connection cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// Another driver answers on the socket.
    #[error("the CSI driver at the socket was {was:?} and is now {is:?}: start an attacher for that one")]
    OtherDriver {
        /// The driver that we serve.
        was: Arc<str>,
        /// The driver that answers.
        is: Arc<str>,
    },
}

/// Opens sessions, one after the other.
#[derive(Debug)]
pub struct ConnectionManager {
    socket: Socket,
    timeout: Duration,
    state_tx: watch::Sender<ConnectionState>,
    calls: Calls,
}

const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// Short enough that an attach follows a driver's return within a second; the Go sidecar allows 1 s
/// between two dials.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// A session that ends sooner is not followed by the next one at once: the server answers all probes
/// and dies of the first call.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// How many attempts pass between two lines in the log, once the pauses are at their longest.
const ATTEMPTS_A_LINE: u32 = 20;

// === impl ConnectionState ===

impl ConnectionState {
    /// The session, if there is one.
    pub fn session(&self) -> Option<&Arc<Session>> {
        match self {
            Self::Up(session) => Some(session),
            Self::Down => None,
        }
    }
}

// === impl ConnectionManager ===

impl ConnectionManager {
    /// A manager for this socket, and where it tells the state of the connection.
    pub fn new(socket: Socket, timeout: Duration) -> (Self, watch::Receiver<ConnectionState>) {
        let (state_tx, state) = watch::channel(ConnectionState::Down);
        (
            Self {
                socket,
                timeout,
                state_tx,
                calls: Calls::default(),
            },
            state,
        )
    }

    /// What is called over its sessions, and what becomes of them.
    pub fn calls(&self) -> Calls {
        self.calls.clone()
    }

    /// Keeps a session open until `shutdown`.
    ///
    /// # Errors
    ///
    /// [`Lost`], when there is no driver any more that we could serve.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Lost> {
        shutdown.run_until_cancelled(self.keep()).await.unwrap_or(Ok(()))
    }

    async fn keep(self) -> Result<(), Lost> {
        let mut served: Option<Arc<str>> = None;
        loop {
            let (session, loss) = self.open().await;
            match &served {
                Some(was) if *was != session.name => {
                    return Err(Lost::OtherDriver {
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
            self.state_tx.send_replace(ConnectionState::Up(Arc::new(session)));
            let opened = Instant::now();
            // Calls that are still under way then keep the old connection until they end.
            loss.cancelled().await;
            self.calls.disconnected();
            self.state_tx.send_replace(ConnectionState::Down);
            tracing::warn!("lost the connection to the CSI driver; reconnecting");
            if opened.elapsed() < SHORT_LIFE {
                tokio::time::sleep(LONGEST_PAUSE).await;
            }
        }
    }

    async fn open(&self) -> (Session, Loss) {
        let mut pause = FIRST_PAUSE;
        for attempt in 0u32.. {
            match Session::open(&self.socket, self.timeout, &self.calls).await {
                Ok(opened) => return opened,
                Err(error) => {
                    self.calls.not_connected(chain(&error));
                    if attempt % ATTEMPTS_A_LINE == 0 {
                        Self::log(&error, attempt);
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        unreachable!("attempts must not run out within 68 years")
    }

    fn log(error: &OpenError, attempt: u32) {
        tracing::warn!(attempt, error = chain(error), "CSI driver is not ready; retrying");
    }
}
