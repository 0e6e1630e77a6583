//! One attacher process as a client of the API server and the driver.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_attacher::leader_election::{Leadership, NotLeading, fenced};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use tokio::time::Instant;

use super::{PROCESS, World};

/// One in this many requests of a replica is interrupted by SIGSTOP.
const SUSPENDED_ONCE_IN: u16 = 100;

#[derive(Clone)]
pub(in super::super) struct Client {
    /// Its identity in the lease, if it takes part in an election.
    identity: Option<Arc<str>>,
    leadership: Leadership,
    /// The process is suspended (SIGSTOP) until this time.
    suspended_until: Arc<Mutex<Instant>>,
}

// === impl Client ===

impl Client {
    /// The only process, without leader election. Its pending requests are lost when it is killed.
    pub(in super::super) fn unopposed() -> Self {
        Self {
            identity: None,
            leadership: Leadership::unopposed(),
            suspended_until: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// A replica that takes part in the world's election. The server processes its sent requests even if the replica is killed
    /// or suspended meanwhile.
    pub(in super::super) fn replica(
        identity: &str,
        leadership: Leadership,
        suspended_until: Arc<Mutex<Instant>>,
    ) -> Self {
        Self {
            identity: Some(identity.into()),
            leadership,
            suspended_until,
        }
    }

    pub(in super::super) fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Splits the latency of a request into the parts before and after the handover of its body to the connection.
    pub(super) fn split(&self, delay: Duration) -> (Duration, Duration) {
        match self.identity {
            None => (delay, Duration::ZERO),
            Some(_) => (delay / 2, delay / 2),
        }
    }

    /// Delay between a replica's decision to send a request and the transport's read of its body. Its process may be suspended
    /// meanwhile, sometimes for so long that the other replica leads when it resumes.
    pub(super) async fn await_connection(&self, world: &World) {
        if self.identity.is_none() {
            return;
        }
        let pause = {
            let mut state = world.state();
            if state.faults.api > 0 && state.random.u16(0..SUSPENDED_ONCE_IN) == 0 {
                let until = Instant::now() + Duration::from_millis(state.random.u64(0..8_000));
                *self
                    .suspended_until
                    .lock()
                    .expect("nothing must panic while it is locked") = until;
            }
            Duration::from_millis(state.random.u64(1..20))
        };
        tokio::time::sleep(pause).await;
    }

    /// Reads the body of a request, as the transports do.
    pub(super) async fn fence(&self) -> Result<(), NotLeading> {
        let mut request = http::Request::new(Empty::<Bytes>::new());
        request.extensions_mut().insert(self.leadership.clone());
        match fenced(request).into_body().collect().await {
            Ok(_) => Ok(()),
            Err(error) => Err(*error.downcast().expect("an empty body fails for no other reason")),
        }
    }

    /// Processes a request on the server.
    #[expect(clippy::disallowed_methods, reason = "the server outlives its clients")]
    pub(super) async fn on_server<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        match self.identity {
            None => work.await,
            Some(_) => tokio::spawn(work).await.expect("the server must not panic"),
        }
    }

    /// The name of its process.
    pub(super) fn name(&self) -> Arc<str> {
        self.identity.clone().unwrap_or_else(|| PROCESS.into())
    }
}
