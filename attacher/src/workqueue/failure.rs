//! Failures and their backoff.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::dispatch::REPORT_PERIOD;
use super::flow_control::{ABORTED, DEADLINE_EXCEEDED};
use super::lane::Node;
use super::{Class, Entry, Key, Lane, Queue, Stage};
use crate::model::Uid;

#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Finished {
    /// Whether the key was enqueued while it ran.
    pub(crate) dirty: bool,
    pub(super) failures: Option<Failures>,
    pub(super) node: Node,
    pub(super) sequence: i64,
    /// Whether its last call was refused because of other calls.
    pub(crate) contended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Success,
    /// It failed with this gRPC code, which other calls may have caused.
    Failed(i32),
    /// It was not sent, or failed for a reason of its own.
    Unrelated,
}

/// The error of a failed sync, which must be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncError {
    /// For the status, the log and Events.
    pub(crate) message: String,
    /// The gRPC code, if the driver returned one.
    pub(crate) code: Option<i32>,
    pub(crate) class: Class,
    /// Minimum delay before the next sync, if the API server sent Retry-After.
    pub(crate) retry_after: Option<Duration>,
    /// Whether it belongs in the object's status and in an Event. Otherwise only the log has it.
    pub(crate) reported: bool,
}

/// Failures in a row of an operation on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failures {
    /// The object. A successor of the same name has its own backoff.
    pub(crate) uid: Uid,
    /// The operation. Failures of an attach do not delay the following detach.
    pub(crate) lane: Lane,
    /// The last error, with the beginning of its message.
    pub(crate) last: SyncError,
    pub(crate) times: u32,
    pub(crate) since: Instant,
    /// Refusals in a row because of other calls.
    pub(super) turns: u32,
    /// Whether the driver may still execute the last call: it was not answered, or the next one was ABORTED.
    pub(crate) executes: bool,
    /// How often a recovery of the node or the driver has ended the backoff early.
    pub(super) wakes: u32,
    /// The last report of a lasting contention.
    pub(super) reported: Option<Instant>,
}

/// Maximum bytes of a message that are kept for `/statusz`. The object's status has the full message.
const MESSAGE_BYTES: usize = 256;

/// Number of consecutive connection losses during a key's calls up to which the key is retried at the reconnect.
pub(super) const TRIES_ON_RETURN: u32 = 3;

/// A key that is refused in more turns than this fails for a reason of its own.
pub(super) const MAX_TURNS: u32 = 12;
/// After this many turns the other keys of the node go first.
pub(super) const FIRST_TURNS: u32 = 3;

// === impl Queue ===

impl Queue {
    /// Starts the backoff of `key`, which grows with the failures of this operation on this object. A dirty key is enqueued at
    /// once, but the failure counts.
    ///
    /// `jitter` is in `0.0..1.0`.
    pub(crate) fn fail(
        &mut self,
        key: &Key,
        finished: Finished,
        (uid, lane): (Uid, Lane),
        mut error: SyncError,
        jitter: f64,
    ) {
        let before = finished.failures;
        let before = before.filter(|before| before.uid == uid && before.lane == lane);
        let mut failures = before.unwrap_or_else(|| Failures {
            uid,
            lane,
            last: error.clone(),
            times: 0,
            since: self.now,
            turns: 0,
            executes: false,
            wakes: 0,
            reported: None,
        });
        error
            .message
            .truncate(error.message.floor_char_boundary(MESSAGE_BYTES));
        // The rest of a driver's message, up to 16 KiB, must not stay allocated while the key waits.
        error.message.shrink_to_fit();
        self.lanes[lane as usize].metrics.retries.inc();
        failures.turns = if finished.contended { failures.turns + 1 } else { 0 };
        failures.executes = match error.code {
            Some(ABORTED) => failures.executes,
            code => code == Some(DEADLINE_EXCEEDED),
        };
        failures.last = error;
        if finished.contended && failures.turns <= MAX_TURNS && failures.last.retry_after.is_none() {
            return self.wait_for_turn(key, finished.node, finished.sequence, failures);
        }
        failures.times = failures.times.saturating_add(1);
        let delay = self.backoff.delay(failures.last.class, failures.times, jitter);
        let delay = delay.max(failures.last.retry_after.unwrap_or_default());
        self.sequence += 1;
        let until = (self.now + delay, self.sequence);
        self.waiting.insert(until, key.clone());
        let entry = Entry {
            lane,
            stage: Stage::Waiting { until },
            node: finished.node,
            failures: Some(failures),
        };
        self.entries.insert(key.clone(), entry);
        if finished.dirty {
            self.enqueue_if_pending(key, &Lane::ALL);
        }
    }

    /// Enqueues a key that was refused because of other calls, with its age.
    fn wait_for_turn(&mut self, key: &Key, node: Node, sequence: i64, mut failures: Failures) {
        let reported = failures.reported.unwrap_or(failures.since);
        if self.now.saturating_duration_since(reported) >= REPORT_PERIOD {
            failures.reported = Some(self.now);
        }
        let mut sequence = sequence;
        if failures.turns > FIRST_TURNS {
            self.sequence += 1;
            sequence = self.sequence;
        }
        self.insert_ready(key, failures.lane, node, sequence, Some(failures));
    }

    /// Whether `key` waits out a backoff for a failure that says nothing about its object.
    pub(super) fn waits_for_driver(&self, key: &Key) -> bool {
        self.failures(key).is_some_and(Failures::waits_for_driver)
    }

    pub(crate) fn failures(&self, key: &Key) -> Option<&Failures> {
        self.entries.get(key)?.failures.as_ref()
    }

    pub(super) fn failures_mut(&mut self, key: &Key) -> Option<&mut Failures> {
        self.entries.get_mut(key)?.failures.as_mut()
    }

    /// Ends the backoff of failures that may be over, as the driver answers again: for `node`, or for all. Oldest first. A
    /// key that keeps failing is woken only a few times before its backoff has to end by itself.
    pub(super) fn end_backoff_of(&mut self, node: Option<&Arc<str>>) {
        let concerns = |entry: &Entry| {
            let failures = entry.failures.as_ref();
            matches!(entry.stage, Stage::Waiting { .. })
                && (node.is_none() || entry.node.as_ref() == node)
                && failures
                    .is_some_and(|failures| failures.wakes < TRIES_ON_RETURN && failures.waits_for_driver())
        };
        let concerned = self.entries.iter().filter(|(_, entry)| concerns(entry));
        let mut concerned: Vec<_> = concerned
            .map(|(key, entry)| (entry.since(self.now), key.clone()))
            .collect();
        concerned.sort_unstable();
        for (_, key) in concerned {
            self.enqueue_if_pending(&key, &Lane::ALL);
            if let Some(failures) = self.failures_mut(&key) {
                failures.wakes += 1;
            }
        }
    }

    /// The gRPC code of the last failure of `key` on this object, unless it succeeded since.
    pub(crate) fn failed_with(&self, key: &Key, uid: &Uid) -> Option<i32> {
        let failures = self.failures(key)?;
        failures.last.code.filter(|_| failures.uid == *uid)
    }

    /// The driver is connected again: ends the backoff of keys that wait for it, and marks running ones dirty. A key that
    /// lost the driver `TRIES_ON_RETURN` times in a row keeps its backoff, because its call may crash the driver
    /// each time.
    pub(crate) fn enqueue_disconnected(&mut self) {
        self.flow.reconnected();
        let concerns = |entry: &Entry| match (&entry.stage, &entry.failures) {
            (Stage::Ready { .. }, _) => false,
            (Stage::Running { .. }, failures) => failures
                .as_ref()
                .is_none_or(|failures| failures.times < TRIES_ON_RETURN),
            (Stage::Waiting { .. }, Some(failures)) => match failures.last.class {
                Class::Disconnected | Class::Unproven => true,
                Class::Interrupted => failures.times < TRIES_ON_RETURN,
                Class::Final | Class::Refused | Class::Uncertain => false,
            },
            (Stage::Waiting { .. }, None) => false,
        };
        let mut concerned: Vec<Key> = self
            .entries
            .iter()
            .filter(|(_, entry)| concerns(entry))
            .map(|(key, _)| key.clone())
            .collect();
        // The map is unordered, and the simulation must be deterministic.
        concerned.sort_unstable();
        for key in concerned {
            self.enqueue_if_pending(&key, &Lane::ALL);
        }
        if self.flow.is_adaptive() {
            self.end_backoff_of(None);
        }
    }
}

// === impl Failures ===

impl Failures {
    /// Whether an outage of the driver may be the reason of the last failure.
    pub(crate) fn waits_for_driver(&self) -> bool {
        let is_pending = self.executes && self.last.code == Some(ABORTED);
        !is_pending && self.last.code.is_some_and(is_transient)
    }
}

/// Whether the code may come from other calls or from an outage: those that are not final, INTERNAL and UNKNOWN.
fn is_transient(code: i32) -> bool {
    matches!(code, 1 | 2 | 4 | 8 | 10 | 13 | 14)
}
