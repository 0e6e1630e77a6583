//! Fault rules: latency, errors, lost responses, and watches that lag or break.
//!
//! A rule matches requests by verb, resource, object name and user agent, and fires with a probability, at most
//! a set number of times. Whether it fires depends only on the seed and on the earlier requests.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use http::StatusCode;
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::request::Location;
use super::status::Status;

/// The effect of a rule on a matching request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// The server waits before it processes the request.
    Latency(Duration),
    /// The server responds with this error and does not execute the request.
    Error(Status),
    /// The server responds with a conflict ("the object has been modified") and does not execute the request.
    Conflict,
    /// The server executes the request, but the connection breaks before the response.
    LostResponse,
    /// The connection breaks before the server processes the request.
    LostRequest,
    /// The connection breaks at once, but the server executes the request after this delay.
    LateExecution(Duration),
    /// A new watch breaks after this delay.
    DroppedWatch(Duration),
    /// A new watch delays all events until this time has passed.
    StaleWatch(Duration),
}

/// A fault and the requests that it applies to.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Verbs (`get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`); empty: all.
    pub verbs: Vec<&'static str>,
    /// Resource or `resource/subresource`, such as `volumeattachments/status`; empty: all.
    pub resource: String,
    /// Substring of the object's name; empty: all.
    pub name: String,
    /// Substring of the client's `User-Agent`; empty: all.
    pub user_agent: String,
    /// Probability that the rule fires, from 0 to 1.
    pub probability: f64,
    /// Maximum number of times that the rule fires.
    pub times: Option<u32>,
    /// The fault to inject.
    pub fault: Fault,
}

/// The attributes of a request that rules match.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestInfo<'a> {
    pub(crate) verb: &'a str,
    pub(crate) location: Option<&'a Location>,
    pub(crate) user_agent: &'a str,
}

/// The faults of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultDecision {
    pub(crate) latency: Duration,
    pub(crate) error: Option<Status>,
    pub(crate) conflict: bool,
    pub(crate) loses_request: bool,
    pub(crate) loses_response: bool,
    pub(crate) late_by: Option<Duration>,
    dropped_after: Option<Duration>,
    stale_for: Option<Duration>,
}

/// The faults of one watch.
#[derive(Debug)]
pub(crate) struct WatchFault {
    drop_at: Option<Instant>,
    stale_until: Option<Instant>,
    disconnected: CancellationToken,
}

/// The rules of a server.
#[derive(Debug)]
pub(crate) struct Faults {
    state: Mutex<State>,
    /// Requests that are executed late.
    late: Mutex<JoinSet<()>>,
}

#[derive(Debug)]
struct State {
    rules: Vec<Rule>,
    rng: Rng,
    is_down: bool,
    /// Cancels the running requests when the server stops.
    stopped: CancellationToken,
    /// Breaks the running watches.
    disconnected: CancellationToken,
}

// === impl Rule ===

impl Rule {
    /// A rule that matches every request.
    pub fn always(fault: Fault) -> Self {
        Self {
            verbs: Vec::new(),
            resource: String::new(),
            name: String::new(),
            user_agent: String::new(),
            probability: 1.0,
            times: None,
            fault,
        }
    }

    /// Restricts the rule to some verbs.
    #[must_use]
    pub fn verbs(mut self, verbs: &[&'static str]) -> Self {
        self.verbs = verbs.to_vec();
        self
    }

    /// Restricts the rule to a resource, or to a subresource (`pods/status`).
    #[must_use]
    pub fn resource(mut self, resource: &str) -> Self {
        resource.clone_into(&mut self.resource);
        self
    }

    /// Restricts the rule to objects whose name contains this text.
    #[must_use]
    pub fn name(mut self, part: &str) -> Self {
        part.clone_into(&mut self.name);
        self
    }

    /// Restricts the rule to clients whose `User-Agent` contains this text.
    #[must_use]
    pub fn user_agent(mut self, part: &str) -> Self {
        part.clone_into(&mut self.user_agent);
        self
    }

    /// Sets the probability that the rule fires, from 0 to 1.
    #[must_use]
    pub fn probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    /// Limits the number of times that the rule fires.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = Some(times);
        self
    }

    fn matches(&self, request: &RequestInfo<'_>) -> bool {
        let verb = self.verbs.is_empty() || self.verbs.contains(&request.verb);
        let agent = request.user_agent.contains(&self.user_agent);
        let place = match request.location {
            None => self.resource.is_empty() && self.name.is_empty(),
            Some(location) => {
                let plural = location.resource.plural;
                let full = if location.subresource.is_empty() {
                    plural.to_owned()
                } else {
                    format!("{plural}/{}", location.subresource)
                };
                (self.resource.is_empty() || self.resource == full) && location.name.contains(&self.name)
            }
        };
        verb && agent && place && self.times != Some(0)
    }
}

// === impl Faults ===

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: Mutex::new(State {
                rules: Vec::new(),
                rng: Rng::with_seed(seed),
                is_down: false,
                stopped: CancellationToken::new(),
                disconnected: CancellationToken::new(),
            }),
            late: Mutex::new(JoinSet::new()),
        }
    }

    /// Executes a request after this delay, unless the server stops before.
    pub(crate) fn execute_late(&self, time: Duration, request: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.stopped();
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        while late.try_join_next().is_some() {}
        late.spawn(async move {
            let request = async {
                tokio::time::sleep(time).await;
                request.await;
            };
            stopped.run_until_cancelled(request).await;
        });
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_rules(&self, rules: Vec<Rule>) {
        self.state().rules = rules;
    }

    pub(crate) fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
        if is_down {
            let stopped = std::mem::take(&mut self.state().stopped);
            stopped.cancel();
            self.disconnect();
        }
    }

    /// Is cancelled when the server stops.
    pub(crate) fn stopped(&self) -> CancellationToken {
        self.state().stopped.clone()
    }

    /// Breaks all watches.
    pub(crate) fn disconnect(&self) {
        let disconnected = std::mem::take(&mut self.state().disconnected);
        disconnected.cancel();
    }

    /// Chooses the faults of a request.
    pub(crate) fn decide(&self, request: &RequestInfo<'_>) -> FaultDecision {
        let mut state = self.state();
        let State {
            rules, rng, is_down, ..
        } = &mut *state;
        let mut decision = FaultDecision {
            loses_request: *is_down,
            ..FaultDecision::default()
        };
        for rule in rules.iter_mut().filter(|rule| rule.matches(request)) {
            if rng.f64() >= rule.probability {
                continue;
            }
            if let Some(times) = &mut rule.times {
                *times -= 1;
            }
            match &rule.fault {
                Fault::Latency(time) => decision.latency += *time,
                Fault::Error(status) => decision.error = Some(status.clone()),
                Fault::Conflict => decision.conflict = true,
                Fault::LostResponse => decision.loses_response = true,
                Fault::LostRequest => decision.loses_request = true,
                Fault::LateExecution(time) => decision.late_by = Some(*time),
                Fault::DroppedWatch(time) => decision.dropped_after = Some(*time),
                Fault::StaleWatch(time) => decision.stale_for = Some(*time),
            }
        }
        decision
    }

    /// The part of a decision that applies to the watch that the request starts.
    pub(crate) fn of_watch(&self, decision: &FaultDecision) -> WatchFault {
        let now = Instant::now();
        WatchFault {
            drop_at: decision.dropped_after.map(|time| now + time),
            stale_until: decision.stale_for.map(|time| now + time),
            disconnected: self.state().disconnected.clone(),
        }
    }
}

// === impl WatchFault ===

impl WatchFault {
    /// Whether the watch breaks now.
    pub(crate) fn drops_now(&self) -> bool {
        let due = self.drop_at.is_some_and(|at| at <= Instant::now());
        due || self.disconnected.is_cancelled()
    }

    /// The time until which the watch delays its events.
    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.stale_until.filter(|until| *until > Instant::now())
    }

    /// Completes when the watch must check again whether it breaks.
    pub(crate) async fn changed(&mut self) {
        let due = async {
            match self.drop_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.disconnected.cancelled() => {}
            () = due => {}
        }
    }
}

impl Status {
    /// The error of an overloaded server.
    pub fn too_many_requests(retry_after_seconds: u32) -> Self {
        let details = serde_json::json!({ "retryAfterSeconds": retry_after_seconds });
        let message = "too many requests, please try again later";
        Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message, details)
    }

    /// The error for a client that lacks a permission.
    pub fn access_denied(resource: &str) -> Self {
        let message = format!("{resource} is forbidden: the client lacks the right");
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message, Value::Null)
    }

    /// The error of a server whose storage times out.
    pub fn storage_timeout() -> Self {
        let message = "etcdserver: request timed out";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", message, Value::Null)
    }
}
