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

/// How often things go wrong, in percent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Faults {
    lost_requests: u8,
    lost_answers: u8,
    /// Requests that are carried out long after their client has given up.
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
    /// Of each request, and of each response.
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

enum Fate {
    Good,
    LostRequest,
    LostAnswer,
    Late,
    Error,
}

// === impl Faults ===

impl Faults {
    pub(crate) const NONE: Self = Self {
        lost_requests: 0,
        lost_answers: 0,
        late: 0,
        errors: 0,
    };
    pub(crate) const SOME: Self = Self {
        lost_requests: 5,
        lost_answers: 5,
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

    /// Carries out what is late.
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

    pub(crate) fn freeze(&self, how_long: Duration) {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .frozen_until = Instant::now() + how_long;
    }

    /// Delays each request and each response by `latency`.
    pub(crate) fn slow_down(&self, latency: Duration) {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .latency = Some(latency);
    }

    pub(crate) fn calm_down(&self) {
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

    /// Whether leases may be written, by its rules for who may do what.
    pub(crate) fn let_write(&self, writable: bool) {
        self.0
            .lock()
            .expect("nothing must panic while it is locked")
            .writable = writable;
    }

    /// Somebody else touches the object.
    pub(crate) fn label(&self) {
        let mut state = self.0.lock().expect("nothing must panic while it is locked");
        let lease = state.lease.borrow().clone();
        if let Some(mut lease) = lease {
            let label = ("touched".to_owned(), state.version.to_string());
            lease.metadata.labels = Some(BTreeMap::from([label]));
            state.store(lease);
        }
    }

    /// When the lease changed last.
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

    async fn travel(&self) {
        let time = {
            let mut state = self.0.lock().expect("nothing must panic while it is locked");
            let random = Duration::from_millis(state.random.u64(1..30));
            state.latency.unwrap_or(random)
        };
        sleep(time).await;
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
        let fate = self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .fate();
        if let Fate::Late = fate {
            let mut state = self.0.lock().expect("nothing must panic while it is locked");
            let at = Instant::now() + Duration::from_millis(state.random.u64(0..30_000));
            state.late.push((at, write.clone()));
        }
        self.travel().await;
        if !self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .writable
        {
            return Err(LeaseError::Refused("leases is forbidden (HTTP 403)".to_owned()));
        }
        let answer = match fate {
            Fate::Good | Fate::LostAnswer => self
                .0
                .lock()
                .expect("nothing must panic while it is locked")
                .write(write),
            Fate::Error => return Err(LeaseError::Unanswered("internal error".to_owned())),
            Fate::LostRequest | Fate::Late => std::future::pending().await,
        };
        if let Fate::LostAnswer = fate {
            std::future::pending::<()>().await;
        }
        self.travel().await;
        answer
    }
}

impl LeaseServer for Server {
    async fn get(&self) -> Result<Option<Lease>, LeaseError> {
        let fate = self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .fate();
        self.travel().await;
        match fate {
            Fate::Good => {}
            Fate::Error => return Err(LeaseError::Unanswered("internal error".to_owned())),
            Fate::LostRequest | Fate::LostAnswer | Fate::Late => std::future::pending().await,
        }
        let lease = self
            .0
            .lock()
            .expect("nothing must panic while it is locked")
            .lease
            .borrow()
            .clone();
        self.travel().await;
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
            server.travel().await;
            let seen = lease.borrow_and_update().clone();
            Some((seen, (lease, server)))
        })
        .boxed()
    }

    fn reconnect(&mut self) {}
}

// === impl State ===

impl State {
    fn fate(&mut self) -> Fate {
        let dice = self.random.u8(0..100);
        let mut bound = 0;
        for (percent, fate) in [
            (self.faults.lost_requests, Fate::LostRequest),
            (self.faults.lost_answers, Fate::LostAnswer),
            (self.faults.late, Fate::Late),
            (self.faults.errors, Fate::Error),
        ] {
            bound += percent;
            if dice < bound {
                return fate;
            }
        }
        Fate::Good
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
