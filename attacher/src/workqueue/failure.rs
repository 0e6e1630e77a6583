//! Failures: how they are remembered, waited out, and cut short when the driver is back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Class, Entry, Key, Lane, Queue, State};
use crate::model::Uid;

/// What [`Queue::finish`] tells about the run that ended.
#[derive(Debug, Default)]
#[must_use]
pub struct Finished {
    /// The key was woken while it ran.
    pub again: bool,
    pub(super) failure: Option<Failure>,
}

/// A failure to be waited out.
#[derive(Clone, Debug)]
pub struct Failed {
    /// The object that it concerns. A successor of the same name starts afresh.
    pub uid: Uid,
    /// The operation. Failures of an attach do not delay the detach that follows.
    pub lane: Lane,
    /// How the failure is to be waited out.
    pub class: Class,
    /// The gRPC code, if it was a call that failed.
    pub code: Option<i32>,
    /// What it was, for people.
    pub message: Arc<str>,
    /// The least time to wait, whatever the backoff is.
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
    /// When the first of them happened.
    pub(super) since: Instant,
}

/// How often in a row a key may lose the driver during its call and still run as soon as it is back.
pub(super) const TRIES_ON_RETURN: u32 = 3;

// === impl Queue ===

impl Queue {
    /// The run of `key` failed: it waits for longer the more often this operation failed on this
    /// very object. With `finished.again` it does not wait, but the failure counts.
    ///
    /// `jitter`, in `0.0..1.0`, spreads keys that failed together.
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
        self.metrics_mut(lane).retries += 1;
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
        if finished.again {
            self.enqueue(key, lane);
        }
    }

    /// The gRPC code of the last failure of `key` on this object, unless something went well since.
    pub fn failed_with(&self, key: &Key, uid: &Uid) -> Option<i32> {
        let failure = self.entries.get(key)?.failure.as_ref()?;
        failure.code.filter(|_| failure.uid == *uid)
    }

    /// The driver is back: every key that waits because it was away runs now, and one whose run under
    /// way met its absence is not going to wait. Whoever saw it go away `TRIES_ON_RETURN` times in a
    /// row waits all the same: a call that brings the driver down must not take all others along for
    /// ever.
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
        // The map's order is random, and the same calls are to give the same order.
        concerned.sort_unstable();
        for key in concerned {
            self.enqueue_if_pending(&key);
        }
    }
}
