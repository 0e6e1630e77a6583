//! Runs the election: waits, sends requests, and publishes the status.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{
    ElectionState, ElectionStatus, Leadership, LeadershipLost, LeaseError, LeaseServer, Request, Settings,
    Step,
};
use crate::report::OngoingFailure;

/// See the module.
pub struct LeaderElector<S> {
    server: S,
    state: ElectionState,
    status_tx: watch::Sender<ElectionStatus>,
    clock: fn() -> Timestamp,
    random: fastrand::Rng,
    changes: Option<BoxStream<'static, Option<Lease>>>,
    callback: Box<Callback>,
    /// Whether our term has not ended, but its last renewal is no longer valid.
    is_paused: bool,
}

/// The changes that callbacks receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A term began.
    StartedLeading,
    /// It ended.
    StoppedLeading,
}

type Callback = dyn Fn(Change, &Lease) + Send;

/// The timeout of a leader's release.
const RELEASE: Duration = Duration::from_secs(5);
/// The timeout of a standby's release, whose claim may have succeeded.
const RELEASE_PENDING: Duration = Duration::from_secs(1);
/// Retries of a release: a closed connection, or a renewal that is executed late, costs one.
const RELEASE_ATTEMPTS: u32 = 4;
const RELEASE_PAUSE: Duration = Duration::from_millis(100);
const PAUSED: &str = "failed to renew lease in time, pausing until it is renewed or another replica holds it";

// === impl LeaderElector ===

impl<S: LeaseServer> LeaderElector<S> {
    /// An elector that has not begun. `clock` makes the Lease's timestamps, which are for information only.
    pub fn new(server: S, settings: Settings, clock: fn() -> Timestamp, seed: u64) -> (Self, Leadership) {
        let (status_tx, status) = watch::channel(ElectionStatus::new(&settings));
        let elector = Self {
            server,
            state: ElectionState::new(settings),
            status_tx,
            clock,
            random: fastrand::Rng::with_seed(seed),
            changes: None,
            callback: Box::new(|_, _| {}),
            is_paused: false,
        };
        (elector, status.into())
    }

    /// Calls `callback` when a term begins or ends. It must not block.
    pub(crate) fn with_callback(mut self, callback: impl Fn(Change, &Lease) + Send + 'static) -> Self {
        self.callback = Box::new(callback);
        self
    }

    /// Runs the election until `stop`, then releases the lease if it is ours. The caller must have stopped
    /// all work.
    ///
    /// # Errors
    ///
    /// [`LeadershipLost`], when leadership was lost. The [`Leadership`] has expired by then.
    ///
    /// # Cancellation
    ///
    /// Like a crash: other replicas wait until the lease expires.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), LeadershipLost> {
        let result = self.run_until_lost(&stop).await;
        match &result {
            Ok(()) => self.leave().await,
            Err(_) => self.notify(Change::StoppedLeading),
        }
        result
    }

    async fn run_until_lost(&mut self, stop: &CancellationToken) -> Result<(), LeadershipLost> {
        loop {
            let step = self.state.next(now(), (self.clock)());
            self.publish();
            self.note_pause();
            match step {
                Step::Stop(lost) => return Err(self.with_cause(lost)),
                Step::Wait(until) => {
                    self.watch();
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(()),
                        change = next_change(&mut self.changes) => {
                            self.state.on_watch_event(change, now(), self.random.f64());
                            // A watch reports a new holder minutes before the next read.
                            self.note(None, false);
                        }
                        () = sleep_until(until.into()) => {}
                    }
                }
                Step::Send { request, deadline } => {
                    let sent = now();
                    let valid_until = self.state.valid_until().map(Instant::from);
                    let led = valid_until.is_some();
                    let expiry = valid_until.filter(|_| !self.is_paused);
                    let (has_paused, result) = tokio::select! {
                        biased;
                        () = stop.cancelled() => return Ok(()),
                        answered = log_pause(expiry, self.send(request, sent, deadline.into())) => answered,
                    };
                    self.is_paused |= has_paused;
                    if let Err(lost) = result {
                        self.publish();
                        return Err(lost);
                    }
                    if !led && self.state.valid_until().is_some() {
                        self.changes = None;
                        self.publish();
                        tracing::info!("successfully acquired lease");
                        self.notify(Change::StartedLeading);
                    }
                }
            }
        }
    }

    /// Sends a request and passes its response to the state.
    async fn send(
        &mut self,
        request: Request,
        sent: std::time::Instant,
        deadline: Instant,
    ) -> Result<(), LeadershipLost> {
        let is_claim = self.state.is_claiming();
        let (silent, failure, result) = match request {
            Request::Get => {
                let (silent, answer) = answer(deadline, &self.server, self.server.get()).await;
                let failure = answer.as_ref().err().cloned();
                (
                    silent,
                    failure,
                    self.state.on_get(answer, sent, now(), self.random.f64()),
                )
            }
            Request::Write(lease) => {
                let (silent, answer) = answer(deadline, &self.server, self.server.write(&lease)).await;
                let failure = answer.as_ref().err().cloned();
                self.state.on_write(answer, sent, now(), self.random.f64());
                (silent, failure, Ok(()))
            }
        };
        self.note(failure.as_ref(), is_claim);
        match failure {
            Some(LeaseError::Conflict) => tracing::debug!("lease update conflict"),
            Some(LeaseError::Unanswered(error) | LeaseError::Rejected(error)) => {
                tracing::warn!(
                    error,
                    leading = self.state.renewed().is_some(),
                    "lease request failed"
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

    /// Watches the lease as a standby, so that a release is seen at once. A leader needs no watch.
    fn watch(&mut self) {
        if self.state.valid_until().is_some() || self.changes.is_some() {
            return;
        }
        let version = self
            .state
            .lease()
            .and_then(|lease| lease.metadata.resource_version.clone());
        if let Some(version) = version {
            self.changes = Some(self.server.changes(&version));
        }
    }

    /// Releases the lease if it is ours, or may be.
    async fn leave(&mut self) {
        if !self.state.may_hold() {
            return;
        }
        let led = self.state.valid_until().is_some();
        self.state.resign();
        self.publish();
        self.status_tx.send_modify(|status| status.renewed = None);
        let release_timeout = if led { RELEASE } else { RELEASE_PENDING };
        match timeout(release_timeout, self.release(led)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error, "cannot release the lease; it expires by itself"),
            Err(_) => tracing::warn!("cannot release the lease in time; it expires by itself"),
        }
        if led {
            self.notify(Change::StoppedLeading);
        }
    }

    async fn release(&mut self, led: bool) -> Result<(), String> {
        // The version that was written last is most probably still current.
        let mut known = if led { self.state.lease().cloned() } else { None };
        let mut error = String::new();
        for _ in 0..RELEASE_ATTEMPTS {
            match self.release_once(known.take()).await {
                Ok(()) => return Ok(()),
                Err(LeaseError::Conflict) => {}
                Err(LeaseError::Rejected(reason)) => return Err(reason),
                Err(LeaseError::Unanswered(reason)) => {
                    error = reason;
                    tokio::time::sleep(RELEASE_PAUSE).await;
                }
            }
        }
        Err(error)
    }

    async fn release_once(&mut self, known: Option<Lease>) -> Result<(), LeaseError> {
        let lease = match known {
            Some(lease) => Some(lease),
            None => self.server.get().await?,
        };
        if let Some(lease) = lease.and_then(|lease| self.state.released(lease, (self.clock)())) {
            self.server.write(&lease).await?;
            tracing::info!("released lease");
        }
        Ok(())
    }

    fn publish(&self) {
        let state = &self.state;
        let valid_until = state.valid_until().map(Instant::from);
        self.status_tx.send_if_modified(|status| {
            let mut changed = status.valid_until != valid_until;
            if status.holder.as_deref() != state.holder() {
                let was = status.holder.take().unwrap_or_default();
                let holder = state.holder().unwrap_or_default();
                if was != holder {
                    let holder = if holder.is_empty() { "none" } else { holder };
                    tracing::info!(holder, "new leader elected");
                }
                status.holder = state.holder().map(str::to_owned);
                changed = true;
            }
            status.valid_until = valid_until;
            // Kept after a loss: the health check reports a process that does not exit.
            status.renewed = state.renewed().map(Instant::from).or(status.renewed);
            status.slow_renewals = state.slow_renewals();
            changed
        });
    }

    /// Logs a pause that began between two requests, and the end of one.
    fn note_pause(&mut self) {
        let Some(until) = self.state.valid_until() else {
            return;
        };
        let is_paused = now() >= until;
        if is_paused && !self.is_paused {
            tracing::warn!("{PAUSED}");
        } else if !is_paused && self.is_paused {
            tracing::info!("renewed lease, resuming: no other replica has held it meanwhile");
        }
        self.is_paused = is_paused;
    }

    /// Adds the error of the last request.
    fn with_cause(&self, lost: LeadershipLost) -> LeadershipLost {
        match (lost, &self.status_tx.borrow().ongoing_failure) {
            (LeadershipLost::Unrenewed { lease, within, .. }, Some(failure)) => LeadershipLost::Unrenewed {
                lease,
                within,
                cause: failure.why.to_string(),
            },
            (lost, _) => lost,
        }
    }

    /// Keeps the last failure for `/statusz`. A conflict is no failure.
    fn note(&self, failure: Option<&LeaseError>, is_claim: bool) {
        self.status_tx.send_if_modified(|status| {
            match failure {
                // The lease can be read and claimed, but the last claim failed.
                None if status.claim_failed && self.state.is_claiming() => {}
                None | Some(LeaseError::Conflict) => {
                    status.ongoing_failure = None;
                    status.claim_failed = false;
                }
                Some(LeaseError::Unanswered(why) | LeaseError::Rejected(why)) => {
                    status.claim_failed |= is_claim;
                    match &mut status.ongoing_failure {
                        Some(ongoing) => ongoing.again(why),
                        none => *none = Some(OngoingFailure::new(why)),
                    }
                }
            }
            // There may be no receiver.
            false
        });
    }

    fn notify(&self, change: Change) {
        if let Some(lease) = self.state.lease() {
            (self.callback)(change, lease);
        }
    }
}

/// Waits for the response, and logs when leadership pauses before it comes, at `expiry`. Also returns whether it paused.
async fn log_pause<T>(expiry: Option<Instant>, response: impl Future<Output = T>) -> (bool, T) {
    let mut response = pin!(response);
    let Some(expiry) = expiry else {
        return (false, response.await);
    };
    match timeout_at(expiry, &mut response).await {
        Ok(response) => (false, response),
        Err(_) => {
            tracing::warn!("{PAUSED}");
            (true, response.await)
        }
    }
}

/// Waits for the response; also returns whether it timed out.
async fn answer<T>(
    deadline: Instant,
    server: &impl LeaseServer,
    request: impl Future<Output = Result<T, LeaseError>>,
) -> (bool, Result<T, LeaseError>) {
    match timeout_at(deadline, request).await {
        Ok(answer) => (false, answer),
        Err(_) => {
            let failure = format!("no response from the API server at {} in time", server.address());
            (true, Err(LeaseError::Unanswered(failure)))
        }
    }
}

/// The next change; never completes once the watch has ended.
async fn next_change(changes: &mut Option<BoxStream<'static, Option<Lease>>>) -> Option<Lease> {
    if let Some(stream) = changes {
        if let Some(change) = stream.next().await {
            return change;
        }
        *changes = None;
    }
    std::future::pending().await
}

/// The state's clock; follows tokio's paused clock.
fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests;
