//! Failures and their backoff.

use std::sync::Arc;
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

/// A failure that needs a backoff.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The object. A successor of the same name has a backoff of its own.
    pub(crate) uid: Uid,
    /// The operation. Failures of an attach do not delay the following detach.
    pub(crate) lane: Lane,
    /// Which backoff applies.
    pub(crate) class: Class,
    /// The gRPC code of a failed call.
    pub(crate) code: Option<i32>,
    /// The error, for `/statusz`.
    pub(crate) message: Arc<str>,
    /// The least delay, whatever the backoff.
    pub(crate) retry_after: Option<Duration>,
}

/// Failures in a row of an operation on an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failures {
    pub(crate) last: Failure,
    pub(crate) times: u32,
    /// When the first of them occurred.
    pub(crate) since: Instant,
}

/// How many times in a row a key may lose the driver during its call and still run at its reconnect.
pub(super) const TRIES_ON_RETURN: u32 = 3;

// === impl Queue ===

impl Queue {
    /// Starts the backoff of `key`, which grows with the failures of this operation on this object. A dirty key is enqueued at
    /// once, but the failure counts.
    ///
    /// `jitter` is in `0.0..1.0`.
    pub(crate) fn fail(&mut self, key: &Key, finished: Finished, failure: Failure, jitter: f64) {
        let lane = failure.lane;
        let (times, since) = finished
            .failures
            .filter(|before| before.last.uid == failure.uid && before.last.lane == lane)
            .map_or((1, self.now), |before| {
                (before.times.saturating_add(1), before.since)
            });
        self.metrics(lane).retries.inc();
        let delay = self.backoff.delay(failure.class, times, jitter);
        let delay = delay.max(failure.retry_after.unwrap_or_default());
        self.sequence += 1;
        let until = (self.now + delay, self.sequence);
        self.waiting.insert(until, key.clone());
        let entry = Entry {
            lane,
            stage: Stage::Waiting { until },
            failures: Some(Failures {
                last: failure,
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
        let Failure { uid: of, code, .. } = &self.entries.get(key)?.failures.as_ref()?.last;
        code.filter(|_| of == uid)
    }

    /// Ends the backoff of keys that wait for the driver's reconnect, and marks running ones dirty. A key that lost the driver
    /// `TRIES_ON_RETURN` times in a row keeps its backoff: a call that crashes the driver must not do so for ever.
    pub(crate) fn enqueue_disconnected(&mut self) {
        let concerns = |entry: &Entry| match (&entry.stage, &entry.failures) {
            (Stage::Ready { .. }, _) => false,
            (Stage::Running { .. }, failures) => failures
                .as_ref()
                .is_none_or(|failures| failures.times < TRIES_ON_RETURN),
            (Stage::Waiting { .. }, Some(failures)) => match failures.last.class {
                Class::Disconnected => true,
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
