//! Failures and their backoff.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Class, Entry, Key, Lane, Queue, State};
use crate::model::Uid;

/// The result of [`Queue::finish`].
#[derive(Debug, Default)]
#[must_use]
pub struct Finished {
    /// Whether the key was enqueued while it ran.
    pub dirty: bool,
    pub(super) failure: Option<Failure>,
}

/// A failure that needs a backoff.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The object. A successor of the same name has a backoff of its own.
    pub uid: Uid,
    /// The operation. Failures of an attach do not delay the following detach.
    pub lane: Lane,
    /// Which backoff applies.
    pub class: Class,
    /// The gRPC code of a failed call.
    pub code: Option<i32>,
    /// The error, for `/statusz`.
    pub message: Arc<str>,
    /// The least delay, whatever the backoff.
    pub retry_after: Option<Duration>,
}

/// The last failure of an operation on an object.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    uid: Uid,
    lane: Lane,
    pub(super) class: Class,
    pub(super) code: Option<i32>,
    pub(super) times: u32,
    pub(super) message: Arc<str>,
    /// When the first of them occurred.
    pub(super) since: Instant,
}

/// How many times in a row a key may lose the driver during its call and still run at its reconnect.
pub(super) const TRIES_ON_RETURN: u32 = 3;

// === impl Queue ===

impl Queue {
    /// Starts the backoff of `key`, which grows with the failures of this operation on this object. A dirty key is enqueued at
    /// once, but the failure counts.
    ///
    /// `jitter` is in `0.0..1.0`.
    pub fn fail(&mut self, key: &Key, finished: Finished, failed: Failed, now: Instant, jitter: f64) {
        let Failed {
            uid,
            lane,
            class,
            code,
            message,
            retry_after,
        } = failed;
        let (times, since) = finished
            .failure
            .filter(|last| last.uid == uid && last.lane == lane)
            .map_or((1, now), |last| (last.times.saturating_add(1), last.since));
        self.metrics(lane).retries.inc();
        let delay = self.backoff.delay(class, times, jitter);
        let until = (now + delay.max(retry_after.unwrap_or_default()), self.sequence());
        self.waiting.insert(until, key.clone());
        let failure = Some(Failure {
            uid,
            lane,
            class,
            code,
            times,
            message,
            since,
        });
        self.entries.insert(
            key.clone(),
            Entry {
                state: State::Waiting { lane, until },
                failure,
            },
        );
        if finished.dirty {
            self.enqueue(key, lane);
        }
    }

    /// The gRPC code of the last failure of `key` on this object, unless it succeeded since.
    pub fn failed_with(&self, key: &Key, uid: &Uid) -> Option<i32> {
        let failure = self.entries.get(key)?.failure.as_ref()?;
        failure.code.filter(|_| failure.uid == *uid)
    }

    /// Ends the backoff of keys that wait for the driver's reconnect, and marks running ones dirty. A key that lost the driver
    /// `TRIES_ON_RETURN` times in a row keeps its backoff: a call that crashes the driver must not do so for ever.
    pub fn enqueue_disconnected(&mut self) {
        let concerns = |entry: &Entry| match (&entry.state, &entry.failure) {
            (State::Ready { .. }, _) => false,
            (State::Running { .. }, failure) => failure
                .as_ref()
                .is_none_or(|failure| failure.times < TRIES_ON_RETURN),
            (State::Waiting { .. }, Some(failure)) => match failure.class {
                Class::Disconnected => true,
                Class::Interrupted => failure.times < TRIES_ON_RETURN,
                Class::Final | Class::Refused | Class::Uncertain => false,
            },
            (State::Waiting { .. }, None) => false,
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
            self.enqueue_if_pending(&key);
        }
    }
}
