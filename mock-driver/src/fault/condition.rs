//! Conditions of backend faults: the calls that the array refuses because of its state. Pure: time and usage
//! are arguments.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::call_info::CallInfo;
use super::reservation::Reservations;

/// The condition under which a backend fault refuses a call: it gives the text of the error.
#[derive(Clone)]
pub(super) struct Condition(pub(super) Arc<Refuse>);

type Refuse = dyn Fn(&mut Asked<'_>) -> Option<String> + Send + Sync;

/// What a condition can ask for.
pub(super) struct Asked<'a> {
    pub(super) call: &'a dyn CallInfo,
    pub(super) state: &'a mut ConditionState,
    pub(super) reserved: &'a Reservations,
    pub(super) now: Duration,
}

/// State of a rule's condition and queue: start, node queues, token bucket.
#[derive(Debug, Default)]
pub(super) struct ConditionState {
    /// Start of the rule since the driver's start.
    pub(super) since: Duration,
    /// The end of each node's queue or lock, unless it is over.
    queues: HashMap<String, Duration>,
    /// Remaining tokens, and the time of that count.
    tokens: Option<(f64, Duration)>,
}

// === impl Condition ===

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condition")
    }
}

// === impl ConditionState ===

impl ConditionState {
    pub(super) fn started_at(now: Duration) -> Self {
        Self {
            since: now,
            ..Self::default()
        }
    }

    pub(super) fn take_token(&mut self, per_second: f64, burst: f64, now: Duration) -> bool {
        let (tokens, counted) = self.tokens.unwrap_or((burst, now));
        let gained = now.saturating_sub(counted).as_secs_f64() * per_second;
        let tokens = (tokens + gained).min(burst);
        let is_allowed = tokens >= 1.0;
        self.tokens = Some((if is_allowed { tokens - 1.0 } else { tokens }, now));
        is_allowed
    }

    pub(super) fn is_queued(&self, node: &str, now: Duration) -> bool {
        self.queues.get(node).is_some_and(|end| *end > now)
    }

    /// Adds a call to the queue of its node, and returns its waiting time.
    pub(super) fn enqueue(&mut self, node: &str, time: Duration, now: Duration) -> Duration {
        self.queues.retain(|_, free| *free > now);
        let free = self.queues.entry(node.to_owned()).or_default();
        *free = now.max(*free) + time;
        free.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_queues_are_removed() {
        let second = Duration::from_secs(1);
        let mut state = ConditionState::default();
        for number in 0..100 {
            let now = 2 * number * second;
            assert_eq!(state.enqueue(&format!("node-{number}"), second, now), second);
            assert_eq!(state.queues.len(), 1);
        }
    }
}
