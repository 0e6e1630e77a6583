//! Failures and their backoff.

use std::time::{Duration, Instant};

use super::{Class, Entry, Key, Lane, Queue, Stage};
use crate::model::Uid;

/// The result of [`Queue::finish`].
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Finished {
    /// Whether the key was enqueued while it ran.
    pub(crate) dirty: bool,
    pub(super) failures: Option<Failures>,
}

/// The error of a failed sync, which must be repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncError {
    /// For the status, the log and Events.
    pub(crate) message: String,
    /// The gRPC code, if the driver returned one.
    pub(crate) code: Option<i32>,
    /// The class of the backoff.
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
    /// When the first of them occurred.
    pub(crate) since: Instant,
}

/// Maximum bytes of a message that are kept for `/statusz`. The object's status has the full message.
const MESSAGE_BYTES: usize = 256;

/// Number of consecutive connection losses during a key's calls up to which the key is retried at the reconnect.
pub(super) const TRIES_ON_RETURN: u32 = 3;

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
        let (times, since) = finished
            .failures
            .filter(|before| before.uid == uid && before.lane == lane)
            .map_or((1, self.now), |before| {
                (before.times.saturating_add(1), before.since)
            });
        self.lanes[lane as usize].metrics.retries.inc();
        let delay = self.backoff.delay(error.class, times, jitter);
        let delay = delay.max(error.retry_after.unwrap_or_default());
        error
            .message
            .truncate(error.message.floor_char_boundary(MESSAGE_BYTES));
        // The rest of a driver's message, up to 16 KiB, must not stay allocated while the key waits.
        error.message.shrink_to_fit();
        self.sequence += 1;
        let until = (self.now + delay, self.sequence);
        self.waiting.insert(until, key.clone());
        let entry = Entry {
            lane,
            stage: Stage::Waiting { until },
            failures: Some(Failures {
                uid,
                lane,
                last: error,
                times,
                since,
            }),
        };
        self.entries.insert(key.clone(), entry);
        if finished.dirty {
            self.enqueue(key, lane);
        }
    }

    /// The gRPC code of the last failure of `key` on this object, unless it succeeded since.
    pub(crate) fn failed_with(&self, key: &Key, uid: &Uid) -> Option<i32> {
        let failures = self.entries.get(key)?.failures.as_ref()?;
        failures.last.code.filter(|_| failures.uid == *uid)
    }

    /// Ends the backoff of keys that wait for the driver's reconnect, and marks running ones dirty. A key that
    /// lost the driver `TRIES_ON_RETURN` times in a row keeps its backoff, because its call may crash the driver
    /// each time.
    pub(crate) fn enqueue_disconnected(&mut self) {
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
    }
}
