//! When each piece of work runs: one work item per key, in lanes that do not starve one another.
//!
//! The queue holds keys, not work: what a key needs is read when it starts, so the newest state
//! always counts and a thousand events about one object are one run. A key runs at most once at a
//! time, whichever lane it is in. Attach and detach have lanes with limits of their own, so a
//! thousand slow detaches do not delay an attach.
//!
//! Time is an argument; the same calls with the same times give the same order.

mod backoff;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::Uid;
pub use backoff::{Backoff, Class};

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The VolumeAttachment of this name.
    Attachment(Arc<str>),
    /// The finalizer of the PersistentVolume of this name.
    Volume(Arc<str>),
}

/// The lanes, in the order in which a free place is offered to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Attaches: a pod is waiting.
    Attach,
    /// Detaches.
    Detach,
    /// PersistentVolume finalizers.
    Volume,
}

/// How many items of each lane may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `--attach-concurrency`.
    pub attach: usize,
    /// `--detach-concurrency`.
    pub detach: usize,
    /// PersistentVolume finalizers.
    pub volume: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    entries: HashMap<Key, Entry>,
    lanes: BTreeMap<Lane, Line>,
    /// Keys that wait out their backoff, by the time it ends.
    waiting: BTreeMap<(Instant, u64), Key>,
    backoff: Backoff,
    tickets: u64,
    /// The lane that was served last, so that the others come first now.
    served: Lane,
}

#[derive(Debug)]
struct Line {
    limit: usize,
    running: usize,
    /// Keys in the order of their tickets. One whose entry has another ticket by now left the line.
    ready: VecDeque<(u64, Key)>,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// The last failure, for as long as the same operation on the same object keeps failing.
    failure: Option<Failure>,
}

#[derive(Debug)]
enum State {
    Ready { lane: Lane, ticket: u64 },
    Running { lane: Lane, again: bool },
    Waiting { lane: Lane, until: (Instant, u64) },
}

#[derive(Clone, Debug)]
struct Failure {
    uid: Uid,
    lane: Lane,
    class: Class,
    times: u32,
}

// === impl Queue ===

impl Queue {
    /// An empty queue.
    pub fn new(limits: Limits, backoff: Backoff) -> Self {
        let line = |limit| Line {
            limit,
            running: 0,
            ready: VecDeque::new(),
        };
        Self {
            entries: HashMap::new(),
            lanes: BTreeMap::from([
                (Lane::Attach, line(limits.attach)),
                (Lane::Detach, line(limits.detach)),
                (Lane::Volume, line(limits.volume)),
            ]),
            waiting: BTreeMap::new(),
            backoff,
            tickets: 0,
            served: Lane::Volume,
        }
    }

    /// Something that matters to `key` changed: it runs as soon as its lane has a free place, also
    /// when it is waiting out a backoff. While it runs, [`Queue::finish`] will say that it is to run
    /// again.
    pub fn wake(&mut self, key: &Key, lane: Lane) {
        let ticket = self.ticket();
        match self.entries.get_mut(key) {
            Some(Entry {
                state: State::Running { again, .. },
                ..
            }) => {
                *again = true;
                return;
            }
            Some(Entry {
                state: State::Ready { lane: ready, .. },
                ..
            }) if *ready == lane => return,
            Some(entry) => {
                if let State::Waiting { until, .. } = entry.state {
                    self.waiting.remove(&until);
                }
                entry.state = State::Ready { lane, ticket };
            }
            None => {
                let entry = Entry {
                    state: State::Ready { lane, ticket },
                    failure: None,
                };
                self.entries.insert(key.clone(), entry);
            }
        }
        self.line(lane).ready.push_back((ticket, key.clone()));
    }

    /// Like [`Queue::wake`] for a key that runs or waits out a backoff, in the lane where it is; any
    /// other key is left alone.
    pub fn wake_if_pending(&mut self, key: &Key) {
        match self.entries.get(key).map(|entry| &entry.state) {
            Some(State::Running { lane, .. } | State::Waiting { lane, .. }) => self.wake(key, *lane),
            Some(State::Ready { .. }) | None => {}
        }
    }

    /// Like [`Queue::wake_if_pending`], for a key that runs or waits in this lane.
    pub fn wake_if_pending_in(&mut self, key: &Key, wanted: Lane) {
        match self.entries.get(key).map(|entry| &entry.state) {
            Some(State::Running { lane, .. } | State::Waiting { lane, .. }) if *lane == wanted => {
                self.wake(key, wanted);
            }
            Some(_) | None => {}
        }
    }

    /// The driver is back: every key that waits because it was away runs now, and one whose run under
    /// way met its absence is not going to wait. Whoever saw it go away `TRIES_ON_RETURN` times in a
    /// row waits all the same: a call that brings the driver down must not take all others along for
    /// ever.
    pub fn wake_returned(&mut self) {
        let concerns = |entry: &Entry| match (&entry.state, &entry.failure) {
            (State::Ready { .. }, _) => false,
            (State::Running { .. }, failure) => failure
                .as_ref()
                .is_none_or(|failure| failure.times < TRIES_ON_RETURN),
            (State::Waiting { .. }, Some(failure)) => match failure.class {
                Class::Disconnected => true,
                Class::Interrupted => failure.times < TRIES_ON_RETURN,
                Class::Final | Class::Uncertain => false,
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
            self.wake_if_pending(&key);
        }
    }

    /// Moves keys whose backoff has ended into their lanes.
    pub fn advance(&mut self, now: Instant) {
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            let Some(Entry {
                state: State::Waiting { lane, .. },
                ..
            }) = self.entries.get(&key)
            else {
                continue;
            };
            self.wake(&key, *lane);
        }
    }

    /// When [`Queue::advance`] is next worth calling.
    pub fn next_advance(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((until, _), _)| *until)
    }

    /// Takes the key that is to run next, if a lane has both work and a free place.
    pub fn start(&mut self) -> Option<(Key, Lane)> {
        let after = self.served;
        let order = [Lane::Attach, Lane::Detach, Lane::Volume];
        let from = order
            .iter()
            .position(|lane| *lane == after)
            .map_or(0, |position| position + 1);
        (0..order.len())
            .map(|step| order[(from + step) % order.len()])
            .find_map(|lane| {
                let key = self.start_in(lane)?;
                self.served = lane;
                Some((key, lane))
            })
    }

    fn start_in(&mut self, lane: Lane) -> Option<Key> {
        let line = self
            .lanes
            .get_mut(&lane)
            .filter(|line| line.running < line.limit)?;
        while let Some((ticket, key)) = line.ready.pop_front() {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            if matches!(entry.state, State::Ready { lane: l, ticket: t } if l == lane && t == ticket) {
                entry.state = State::Running { lane, again: false };
                line.running += 1;
                return Some(key);
            }
        }
        None
    }

    /// The run of `key` is over. Says whether it was woken meanwhile. The key is no longer in the
    /// queue; what it needs next is the caller's to say, by [`Queue::wake`].
    pub fn finish(&mut self, key: &Key) -> Finished {
        let Some(entry) = self.entries.remove(key) else {
            return Finished::default();
        };
        match entry.state {
            State::Running { lane, again } => {
                self.line(lane).running -= 1;
                Finished {
                    again,
                    failure: entry.failure,
                }
            }
            State::Ready { .. } | State::Waiting { .. } => {
                self.entries.insert(key.clone(), entry);
                Finished::default()
            }
        }
    }

    /// The run of `key` failed: it waits for longer the more often this operation failed on this
    /// very object. With `finished.again` it does not wait, but the failure counts.
    ///
    /// `jitter`, in `0.0..1.0`, spreads keys that failed together.
    pub fn fail(&mut self, key: &Key, finished: Finished, failed: Failed, now: Instant, jitter: f64) {
        let Failed { uid, lane, class } = failed;
        let times = finished
            .failure
            .filter(|last| last.uid == uid && last.lane == lane)
            .map_or(1, |last| last.times.saturating_add(1));
        let until = (now + self.backoff.delay(class, times, jitter), self.ticket());
        self.waiting.insert(until, key.clone());
        let failure = Some(Failure {
            uid,
            lane,
            class,
            times,
        });
        self.entries.insert(
            key.clone(),
            Entry {
                state: State::Waiting { lane, until },
                failure,
            },
        );
        if finished.again {
            self.wake(key, lane);
        }
    }

    /// The object is gone, and with it all reason to run. A run under way ends by itself.
    pub fn forget(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.failure = None;
        match entry.state {
            State::Running { .. } => return,
            State::Waiting { until, .. } => {
                self.waiting.remove(&until);
            }
            State::Ready { .. } => {}
        }
        self.entries.remove(key);
    }

    /// Whether `key` is running.
    pub fn is_running(&self, key: &Key) -> bool {
        matches!(
            self.entries.get(key),
            Some(Entry {
                state: State::Running { .. },
                ..
            })
        )
    }

    /// How many keys run in all lanes.
    pub fn running(&self) -> usize {
        self.lanes.values().map(|line| line.running).sum()
    }

    fn line(&mut self, lane: Lane) -> &mut Line {
        self.lanes
            .get_mut(&lane)
            .expect("every lane must have its line from the start")
    }

    fn ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }
}

/// What [`Queue::finish`] tells about the run that ended.
#[derive(Debug, Default)]
#[must_use]
pub struct Finished {
    /// The key was woken while it ran.
    pub again: bool,
    failure: Option<Failure>,
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
}

/// How often in a row a key may lose the driver during its call and still run as soon as it is back.
const TRIES_ON_RETURN: u32 = 3;

/// The longest that two keys which failed together are kept apart, as a share of their delay.
const JITTER: f64 = 0.2;

fn jittered(delay: Duration, jitter: f64) -> Duration {
    delay.mul_f64(1.0 - JITTER * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
