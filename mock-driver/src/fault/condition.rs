//! Conditions of backend faults: the calls that the array refuses because of its state. Pure: time and usage
//! are arguments.

use std::collections::HashMap;
use std::time::Duration;

use super::call_info::{ArrayUsage, CallInfo, is_for_array};
use super::reservation::Reservations;

/// The condition under which a backend fault refuses a call.
#[derive(Clone, Debug)]
pub(crate) enum Condition {
    /// The call changes the array. The text is that of the error.
    Changes(&'static str),
    /// The call has a `starting_token`.
    Continues,
    /// The call needs the array's record of changed blocks.
    NoTracking,
    /// The node does not exist any more.
    NodeGone,
    /// The node has this number of volumes.
    NodeLimit(u64),
    /// An earlier call locked the node, for this time from its begin.
    NodeLock(Duration),
    /// The array has this number of volumes, or too little capacity for the call.
    Quota {
        volumes: Option<u64>,
        bytes: Option<u64>,
    },
    /// The calls to the array exceed a token bucket.
    RateLimit { per_second: f64, burst: f64 },
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

impl Condition {
    /// The text of the error if the call is refused.
    pub(super) fn refusal(
        &self,
        state: &mut ConditionState,
        call: &dyn CallInfo,
        reserved: &Reservations,
        now: Duration,
    ) -> Option<String> {
        match self {
            Self::Changes(text) => call.changes().then(|| (*text).to_owned()),
            Self::Continues => call
                .continues()
                .then(|| "starting_token: has expired: list again without it".to_owned()),
            Self::NoTracking => {
                Some("the array does not track which blocks change: copy the whole snapshot".to_owned())
            }
            Self::NodeGone => Some(format!("node \"{}\" is unknown to the array", call.node())),
            Self::NodeLimit(limit) => {
                let usage = call.usage(reserved);
                let ArrayUsage { on_node, .. } = usage;
                (on_node >= *limit && !usage.is_repeat).then(|| {
                    format!(
                        "node \"{}\" has reached its limit: {on_node} volumes are attached",
                        call.node()
                    )
                })
            }
            Self::NodeLock(time) => {
                let is_locked = state.queues.get(call.node()).is_some_and(|end| *end > now);
                if !is_locked {
                    state.enqueue(call.node(), *time, now);
                }
                is_locked.then(|| format!("node \"{}\" is locked: another operation is pending", call.node()))
            }
            Self::Quota { volumes, bytes } => {
                let usage = call.usage(reserved);
                let is_exceeded = volumes.is_some_and(|most| usage.volumes >= most)
                    || bytes.is_some_and(|most| usage.bytes.saturating_add(usage.asked) > most);
                let ArrayUsage { volumes, bytes, .. } = usage;
                (is_exceeded && !usage.is_repeat)
                    .then(|| format!("quota exceeded: the array has {volumes} volumes with {bytes} bytes"))
            }
            Self::RateLimit { per_second, burst } => {
                let is_exceeded = is_for_array(call.path()) && !state.take_token(*per_second, *burst, now);
                is_exceeded
                    .then(|| format!("rate limit of {per_second} calls per second exceeded: retry later"))
            }
        }
    }
}

// === impl ConditionState ===

impl ConditionState {
    /// The state of a rule that starts now.
    pub(super) fn started_at(now: Duration) -> Self {
        Self {
            since: now,
            ..Self::default()
        }
    }

    /// Takes a token from the bucket; returns whether there was one.
    fn take_token(&mut self, per_second: f64, burst: f64, now: Duration) -> bool {
        let (tokens, counted) = self.tokens.unwrap_or((burst, now));
        let gained = now.saturating_sub(counted).as_secs_f64() * per_second;
        let tokens = (tokens + gained).min(burst);
        let is_allowed = tokens >= 1.0;
        self.tokens = Some((if is_allowed { tokens - 1.0 } else { tokens }, now));
        is_allowed
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
