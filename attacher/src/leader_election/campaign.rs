//! Taking part in the election: waits, asks, and says where we stand.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Elector, Failure, Leadership, LeaseServer, Lost, Request, Settings, Standing, Step};
use crate::kube_api::Trouble;

/// See the module.
pub struct Campaign<S> {
    server: S,
    elector: Elector,
    standing_tx: watch::Sender<Standing>,
    clock: fn() -> Timestamp,
    random: fastrand::Rng,
    changes: Option<BoxStream<'static, Option<Lease>>>,
    herald: Box<Herald>,
}

/// What is worth telling people about the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// We lead.
    Began,
    /// We do no longer.
    Ended,
}

/// Who tells people.
type Herald = dyn Fn(Change, &Lease) + Send;

/// How long a leader that stops tries to give the lease back.
const RELEASE: Duration = Duration::from_secs(5);
/// The same for a standby whose claim may have been granted a moment ago.
const RELEASE_IN_DOUBT: Duration = Duration::from_secs(1);
/// A connection that the API server closed, or a renewal of ours that it carries out late, costs one.
const RELEASE_ATTEMPTS: u32 = 4;
const RELEASE_PAUSE: Duration = Duration::from_millis(100);

// === impl Campaign ===

impl<S: LeaseServer> Campaign<S> {
    /// A campaign that has not begun. `clock` is what stands in the lease for people to read, and nothing
    /// else depends on it.
    pub fn new(server: S, settings: Settings, clock: fn() -> Timestamp, seed: u64) -> (Self, Leadership) {
        let (standing_tx, standing) = watch::channel(Standing::new(&settings));
        let campaign = Self {
            server,
            elector: Elector::new(settings),
            standing_tx,
            clock,
            random: fastrand::Rng::with_seed(seed),
            changes: None,
            herald: Box::new(|_, _| {}),
        };
        (campaign, standing.into())
    }

    /// Calls `tell` when a term begins or ends. It must not wait.
    pub fn telling(mut self, tell: impl Fn(Change, &Lease) + Send + 'static) -> Self {
        self.herald = Box::new(tell);
        self
    }

    /// Takes part until `stop`, then gives the lease back if it is ours. Whoever gives it must have
    /// stopped working.
    ///
    /// # Errors
    ///
    /// [`Lost`], when we led and do no longer: at that time the [`Leadership`] has ended already.
    ///
    /// # Cancellation
    ///
    /// Like a crash: others wait until the lease lapses.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), Lost> {
        let stood = self.stand(&stop).await;
        match &stood {
            Ok(()) => self.leave().await,
            Err(_) => self.tell(Change::Ended),
        }
        stood
    }

    async fn stand(&mut self, stop: &CancellationToken) -> Result<(), Lost> {
        loop {
            let step = self.elector.next(now(), (self.clock)());
            self.publish();
            match step {
                Step::Stop(lost) => return Err(lost),
                Step::Wait(until) => {
                    self.watch();
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(()),
                        change = next_change(&mut self.changes) => {
                            self.elector.seen(change, now(), self.random.f64());
                            // That somebody else was granted the lease is told here, and by no look for minutes.
                            self.note(None, false);
                        }
                        () = sleep_until(until.into()) => {}
                    }
                }
                Step::Send { request, deadline } => {
                    let sent = now();
                    let led = self.elector.valid_until().is_some();
                    let result = tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(()),
                        answered = self.send(request, sent, deadline.into()) => answered,
                    };
                    if let Err(lost) = result {
                        self.publish();
                        return Err(lost);
                    }
                    if !led && self.elector.valid_until().is_some() {
                        self.changes = None;
                        self.publish();
                        tracing::info!("leading");
                        self.tell(Change::Began);
                    }
                }
            }
        }
    }

    /// Sends a request and hands its answer to the elector.
    async fn send(
        &mut self,
        request: Request,
        sent: std::time::Instant,
        deadline: Instant,
    ) -> Result<(), Lost> {
        let is_claim = self.elector.is_claiming();
        let (silent, failure, result) = match request {
            Request::Look => {
                let (silent, answer) = answer(deadline, self.server.get()).await;
                let failure = answer.as_ref().err().cloned();
                (
                    silent,
                    failure,
                    self.elector.looked(answer, now(), self.random.f64()),
                )
            }
            Request::Create(lease) => {
                let (silent, answer) = answer(deadline, self.server.create(&lease)).await;
                let failure = answer.as_ref().err().cloned();
                self.elector.wrote(answer, sent, now(), self.random.f64());
                (silent, failure, Ok(()))
            }
            Request::Update(lease) => {
                let (silent, answer) = answer(deadline, self.server.update(&lease)).await;
                let failure = answer.as_ref().err().cloned();
                self.elector.wrote(answer, sent, now(), self.random.f64());
                (silent, failure, Ok(()))
            }
        };
        self.note(failure.as_ref(), is_claim);
        match failure {
            Some(Failure::Conflict) => tracing::debug!("the lease was written by somebody else meanwhile"),
            Some(Failure::Unanswered(error) | Failure::Refused(error)) => {
                tracing::warn!(
                    error,
                    leading = self.elector.renewed().is_some(),
                    "request about the lease failed"
                );
            }
            None => {}
        }
        if silent {
            self.changes = None;
            self.server.reconnect();
        }
        result
    }

    /// A standby is told at once when the lease becomes free; a leader need not be.
    fn watch(&mut self) {
        if self.elector.valid_until().is_some() || self.changes.is_some() {
            return;
        }
        let version = self
            .elector
            .lease()
            .and_then(|lease| lease.metadata.resource_version.clone());
        if let Some(version) = version {
            self.changes = Some(self.server.changes(&version));
        }
    }

    /// Gives the lease back if it is ours, or may be.
    async fn leave(&mut self) {
        if !self.elector.may_hold() {
            return;
        }
        let led = self.elector.valid_until().is_some();
        self.elector.resign();
        self.publish();
        self.standing_tx.send_modify(|standing| standing.renewed = None);
        let patience = if led { RELEASE } else { RELEASE_IN_DOUBT };
        match timeout(patience, self.release(led)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error, "could not give the lease back; it lapses by itself"),
            Err(_) => tracing::warn!("could not give the lease back in time; it lapses by itself"),
        }
        if led {
            self.tell(Change::Ended);
        }
    }

    async fn release(&mut self, led: bool) -> Result<(), String> {
        // What we wrote last is what it is, most probably.
        let mut known = if led { self.elector.lease().cloned() } else { None };
        let mut error = String::new();
        for _ in 0..RELEASE_ATTEMPTS {
            match self.release_once(known.take()).await {
                Ok(()) => return Ok(()),
                Err(Failure::Conflict) => {}
                Err(Failure::Refused(reason)) => return Err(reason),
                Err(Failure::Unanswered(reason)) => {
                    error = reason;
                    tokio::time::sleep(RELEASE_PAUSE).await;
                }
            }
        }
        Err(error)
    }

    async fn release_once(&mut self, known: Option<Lease>) -> Result<(), Failure> {
        let lease = match known {
            Some(lease) => Some(lease),
            None => self.server.get().await?,
        };
        if let Some(lease) = lease.and_then(|lease| self.elector.released(lease, (self.clock)())) {
            self.server.update(&lease).await?;
            tracing::info!("gave the lease back");
        }
        Ok(())
    }

    fn publish(&self) {
        let elector = &self.elector;
        let valid_until = elector.valid_until().map(Instant::from);
        self.standing_tx.send_if_modified(|standing| {
            let mut changed = standing.valid_until != valid_until;
            if standing.holder.as_deref() != elector.holder() {
                let was = standing.holder.take().unwrap_or_default();
                let holder = elector.holder().unwrap_or_default();
                if was != holder {
                    let holder = if holder.is_empty() { "nobody" } else { holder };
                    tracing::info!(holder, "the lease has changed hands");
                }
                standing.holder = elector.holder().map(str::to_owned);
                changed = true;
            }
            standing.valid_until = valid_until;
            // Kept when leadership is lost: whether we end then is what health is about.
            standing.renewed = elector.renewed().map(Instant::from).or(standing.renewed);
            standing.slow_renewals = elector.slow_renewals();
            changed
        });
    }

    /// Keeps for people what came of the last request. That somebody else was quicker is no trouble.
    fn note(&self, failure: Option<&Failure>, is_claim: bool) {
        self.standing_tx.send_if_modified(|standing| {
            match (failure, &mut standing.trouble) {
                // The lease can be read and is to be claimed, which came to nothing the last time.
                (None, _) if standing.claim_failed && self.elector.is_claiming() => return false,
                (None | Some(Failure::Conflict), trouble) => {
                    *trouble = None;
                    standing.claim_failed = false;
                }
                (Some(Failure::Unanswered(why) | Failure::Refused(why)), Some(trouble)) => trouble.again(why),
                (Some(Failure::Unanswered(why) | Failure::Refused(why)), trouble) => {
                    *trouble = Some(Trouble::new(why));
                }
            }
            if matches!(failure, Some(Failure::Unanswered(_) | Failure::Refused(_))) {
                standing.claim_failed |= is_claim;
            }
            // Nobody waits for it.
            false
        });
    }

    fn tell(&self, change: Change) {
        if let Some(lease) = self.elector.lease() {
            (self.herald)(change, lease);
        }
    }
}

/// Whether there was none in time, and the answer.
async fn answer<T>(
    deadline: Instant,
    request: impl Future<Output = Result<T, Failure>>,
) -> (bool, Result<T, Failure>) {
    match timeout_at(deadline, request).await {
        Ok(answer) => (false, answer),
        Err(_) => {
            let failure = Failure::Unanswered("no answer from the API server in time".to_owned());
            (true, Err(failure))
        }
    }
}

/// The next change; never, once there are no more to come.
async fn next_change(changes: &mut Option<BoxStream<'static, Option<Lease>>>) -> Option<Lease> {
    if let Some(stream) = changes {
        if let Some(change) = stream.next().await {
            return change;
        }
        *changes = None;
    }
    std::future::pending().await
}

/// The elector's clock; follows tokio's paused clock.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}
