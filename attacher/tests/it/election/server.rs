//! An API server with one Lease.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use csi_attacher::leader_election::{LeaseError, LeaseServer};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

/// Probabilities of faults, in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    lost_requests: u8,
    lost_responses: u8,
    /// Requests that the server processes long after the client's timeout.
    late: u8,
    errors: u8,
}

/// A connection to the server.
#[derive(Clone)]
pub(crate) struct Server(Arc<Mutex<State>>);

struct State {
    lease: watch::Sender<Option<Lease>>,
    version: u64,
    changed: Instant,
    frozen_until: Instant,
    /// Latency of each request and each response. Random by default.
    latency: Option<Duration>,
    faults: Faults,
    watchable: bool,
    writable: bool,
    random: fastrand::Rng,
    late: Vec<(Instant, Write)>,
}

#[derive(Clone)]
enum Write {
    Create(Lease),
    Update(Lease),
}

enum Outcome {
    Success,
    LostRequest,
    LostResponse,
    Late,
    Error,
}

// === impl Faults ===

impl Faults {
    pub(crate) const NONE: Self = Self {
        lost_requests: 0,
        lost_responses: 0,
        late: 0,
        errors: 0,
    };
    pub(crate) const SOME: Self = Self {
        lost_requests: 5,
        lost_responses: 5,
        late: 5,
        errors: 5,
    };
}

// === impl Server ===

impl Server {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        Self(Arc::new(Mutex::new(State {
            lease: watch::Sender::new(None),
            version: 0,
            changed: Instant::now(),
            frozen_until: Instant::now(),
            latency: None,
            faults,
            watchable: true,
            writable: true,
            random: fastrand::Rng::with_seed(seed),
            late: Vec::new(),
        })))
    }

    /// Processes the late requests.
    pub(crate) async fn run(&self) {
        loop {
            sleep(Duration::from_millis(100)).await;
            let mut state = self.0.lock().expect("nothing must panic while it is locked");
            let now = Instant::now();
            let (due, rest) = std::mem::take(&mut state.late)
                .into_iter()
                .partition(|(at, _)| *at <= now);
            state.late = rest;
            for (_, write) in due {
                drop(state.write(write));
            }
        }
    }

    pub(crate) fn freeze(&self, duration: Duration) {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .frozen_until = Instant::now() + duration;
    }

    /// Delays each request and each response by `latency`.
    pub(crate) fn slow_down(&self, latency: Duration) {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .latency = Some(latency);
    }

    pub(crate) fn stop_faults(&self) {
        let mut state = self.0.lock().expect("nothing must panic while it is locked");
        state.faults = Faults::NONE;
        state.frozen_until = Instant::now();
    }

    pub(crate) fn forbid_watches(&self) {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .watchable = false;
    }

    /// Sets whether RBAC allows writes of leases.
    pub(crate) fn set_writable(&self, writable: bool) {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .writable = writable;
    }

    /// Another client updates the Lease's labels.
    pub(crate) fn label(&self) {
        let mut state = self.0.lock().expect("nothing must panic while it is locked");
        let lease = state.lease.borrow().clone();
        if let Some(mut lease) = lease {
            let label = ("touched".to_owned(), state.version.to_string());
            lease.metadata.labels = Some(BTreeMap::from([label]));
            state.store(lease);
        }
    }

    /// Time of the last change.
    pub(crate) fn changed(&self) -> Instant {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .changed
    }

    pub(crate) fn holder(&self) -> Option<String> {
        let state = self.0.lock().expect("nothing must panic while it is locked");
        let lease = state.lease.borrow().clone();
        lease?.spec?.holder_identity
    }

    pub(crate) fn transitions(&self) -> i32 {
        let state = self.0.lock().expect("nothing must panic while it is locked");
        let lease = state.lease.borrow().clone();
        lease
            .and_then(|lease| lease.spec?.lease_transitions)
            .unwrap_or(-1)
    }

    /// Waits for the latency of one way, and until the server is not frozen.
    async fn transmit(&self) {
        let latency = {
            let mut state = self.0.lock().expect("nothing must panic while it is locked");
            let random = Duration::from_millis(state.random.u64(1..30));
            state.latency.unwrap_or(random)
        };
        sleep(latency).await;
        loop {
            let frozen_until = self
                .0
                .lock()
                .expect("nothing must panic while it is locked")
                .frozen_until;
            if frozen_until <= Instant::now() {
                return;
            }
            sleep_until(frozen_until).await;
        }
    }

    async fn send(&self, write: Write) -> Result<Lease, LeaseError> {
        let outcome = self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .next_outcome();
        if let Outcome::Late = outcome {
            let mut state = self.0.lock().expect("nothing must panic while it is locked");
            let at = Instant::now() + Duration::from_millis(state.random.u64(0..30_000));
            state.late.push((at, write.clone()));
        }
        self.transmit().await;
        if !self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .writable
        {
            return Err(LeaseError::Rejected("leases is forbidden (HTTP 403)".to_owned()));
        }
        let response = match outcome {
            Outcome::Success | Outcome::LostResponse => self
                .0
                .lock()
                .expect("nothing must panic while it is locked")
                .write(write),
            Outcome::Error => return Err(LeaseError::Unanswered("internal error".to_owned())),
            Outcome::LostRequest | Outcome::Late => std::future::pending().await,
        };
        if let Outcome::LostResponse = outcome {
            std::future::pending::<()>().await;
        }
        self.transmit().await;
        response
    }
}

impl LeaseServer for Server {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        let outcome = self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .next_outcome();
        self.transmit().await;
        match outcome {
            Outcome::Success => {}
            Outcome::Error => return Err(LeaseError::Unanswered("internal error".to_owned())),
            Outcome::LostRequest | Outcome::LostResponse | Outcome::Late => std::future::pending().await,
        }
        let lease = self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .lease
            .borrow()
            .clone();
        self.transmit().await;
        Ok(lease)
    }

    async fn write(&self, lease: &Lease) -> Result<Lease, LeaseError> {
        self.send(match lease.metadata.resource_version {
            Some(_) => Write::Update(lease.clone()),
            None => Write::Create(lease.clone()),
        })
        .await
    }

    fn changes(&self, version: &str) -> BoxStream<'static, Option<Lease>> {
        let state = self.0.lock().expect("nothing must panic while it is locked");
        if !state.watchable {
            return stream::empty().boxed();
        }
        let (mut lease, known) = (state.lease.subscribe(), version.to_owned());
        let outdated = |lease: &Option<Lease>| version_of(lease.as_ref()) != known;
        if outdated(&lease.borrow_and_update()) {
            lease.mark_changed();
        }
        let server = self.clone();
        stream::unfold((lease, server), |(mut lease, server)| async move {
            lease.changed().await.ok()?;
            server.transmit().await;
            let seen = lease.borrow_and_update().clone();
            Some((seen, (lease, server)))
        })
        .boxed()
    }

    fn address(&self) -> &'static str {
        "localhost"
    }

    fn reconnect(&mut self) {}
}

// === impl State ===

impl State {
    fn next_outcome(&mut self) -> Outcome {
        let roll = self.random.u8(0..100);
        let mut bound = 0;
        for (percent, outcome) in [
            (self.faults.lost_requests, Outcome::LostRequest),
            (self.faults.lost_responses, Outcome::LostResponse),
            (self.faults.late, Outcome::Late),
            (self.faults.errors, Outcome::Error),
        ] {
            bound += percent;
            if roll < bound {
                return outcome;
            }
        }
        Outcome::Success
    }

    fn write(&mut self, write: Write) -> Result<Lease, LeaseError> {
        let known = version_of(self.lease.borrow().as_ref());
        match write {
            Write::Create(lease) if known.is_empty() => Ok(self.store(lease)),
            Write::Update(lease) if !known.is_empty() && version_of(Some(&lease)) == known => {
                Ok(self.store(lease))
            }
            Write::Create(_) | Write::Update(_) => Err(LeaseError::Conflict),
        }
    }

    fn store(&mut self, mut lease: Lease) -> Lease {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.changed = Instant::now();
        self.lease.send_replace(Some(lease.clone()));
        lease
    }
}

fn version_of(lease: Option<&Lease>) -> String {
    lease
        .and_then(|lease| lease.metadata.resource_version.clone())
        .unwrap_or_default()
}
