//! When each piece of work runs: one work item per key, in lanes that do not starve one another.
//!
//! The queue holds keys, not work: what a key needs is read when it starts, so the newest state
//! always counts and a thousand events about one object are one run. A key runs at most once at a
//! time, whichever lane it is in. Attach and detach have lanes with limits of their own, so a
//! thousand slow detaches do not delay an attach.
//!
//! Time is an argument; the same calls with the same times give the same order.

mod backoff;
mod failure;
mod item;
mod metrics;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::PublishTarget;
pub use backoff::{Backoff, Class};
use failure::Failure;
pub use failure::{Failed, Finished};
pub use item::{Item, Stage};
pub use metrics::QueueMetrics;

/// What is worked on.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The VolumeAttachment of this name.
    Attachment(Arc<str>),
    /// The finalizer of the PersistentVolume of this name.
    Volume(Arc<str>),
    /// A publish target whose VolumeAttachment is gone.
    Target(PublishTarget),
}

/// The lanes, in the order in which a free place is offered to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Attaches: a pod is waiting.
    Attach,
    /// Detaches.
    Detach,
    /// Attaches and detaches that nothing but a survey asks for: the volume may be in use, or in nobody's way.
    Repair,
    /// PersistentVolume finalizers.
    Volume,
}

/// How many items of each lane may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `--attach-concurrency`. Half as many repairs may run besides.
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
    lanes: BTreeMap<Lane, LaneQueue>,
    /// Keys that wait out their backoff, by the time it ends.
    waiting: BTreeMap<(Instant, u64), Key>,
    backoff: Backoff,
    sequences: u64,
    /// The lane that was served last, so that the others come first now.
    served: Lane,
    /// The newest time that anybody told.
    now: Option<Instant>,
    attachments: QueueMetrics,
    volumes: QueueMetrics,
}

#[derive(Debug)]
struct LaneQueue {
    limit: usize,
    running: usize,
    /// Keys in the order of their sequences. One whose entry has another sequence by now left the line.
    ready: VecDeque<(u64, Key)>,
    /// How many at its end came after the time was last told.
    fresh: usize,
}

#[derive(Debug)]
struct Entry {
    state: State,
    /// The last failure, for as long as the same operation on the same object keeps failing.
    failure: Option<Failure>,
}

#[derive(Debug)]
enum State {
    Ready {
        lane: Lane,
        sequence: u64,
        since: Option<Instant>,
    },
    Running {
        lane: Lane,
        again: bool,
        since: Option<Instant>,
    },
    Waiting {
        lane: Lane,
        until: (Instant, u64),
    },
}

// === impl Lane ===

impl Lane {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Attach, Self::Detach, Self::Repair, Self::Volume];

    /// Its name, as it stands in metrics and on the status page.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Repair => "repair",
            Self::Volume => "release",
        }
    }
}

// === impl Queue ===

impl Queue {
    /// An empty queue.
    pub fn new(limits: Limits, backoff: Backoff) -> Self {
        let line = |limit| LaneQueue {
            limit,
            running: 0,
            ready: VecDeque::new(),
            fresh: 0,
        };
        Self {
            entries: HashMap::new(),
            lanes: BTreeMap::from([
                (Lane::Attach, line(limits.attach)),
                (Lane::Detach, line(limits.detach)),
                (Lane::Repair, line((limits.attach / 2).max(1))),
                (Lane::Volume, line(limits.volume)),
            ]),
            waiting: BTreeMap::new(),
            backoff,
            sequences: 0,
            served: Lane::Volume,
            now: None,
            attachments: QueueMetrics::default(),
            volumes: QueueMetrics::default(),
        }
    }

    /// Something that matters to `key` changed: it runs as soon as its lane has a free place, also
    /// when it is waiting out a backoff. While it runs, [`Queue::finish`] will say that it is to run
    /// again.
    pub fn enqueue(&mut self, key: &Key, lane: Lane) {
        let sequence = self.sequence();
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
                entry.state = State::Ready {
                    lane,
                    sequence,
                    since: None,
                };
            }
            None => {
                let entry = Entry {
                    state: State::Ready {
                        lane,
                        sequence,
                        since: None,
                    },
                    failure: None,
                };
                self.entries.insert(key.clone(), entry);
            }
        }
        let line = self.line(lane);
        line.ready.push_back((sequence, key.clone()));
        line.fresh += 1;
        self.metrics_mut(lane).adds += 1;
    }

    /// Like [`Queue::enqueue`] for a key that runs or waits out a backoff, in the lane where it is; any
    /// other key is left alone.
    pub fn enqueue_if_pending(&mut self, key: &Key) {
        match self.entries.get(key).map(|entry| &entry.state) {
            Some(State::Running { lane, .. } | State::Waiting { lane, .. }) => self.enqueue(key, *lane),
            Some(State::Ready { .. }) | None => {}
        }
    }

    /// Like [`Queue::enqueue_if_pending`], for a key that runs or waits in one of these lanes.
    pub fn enqueue_if_pending_in(&mut self, key: &Key, lanes: &[Lane]) {
        match self.entries.get(key).map(|entry| &entry.state) {
            Some(State::Running { lane, .. } | State::Waiting { lane, .. }) if lanes.contains(lane) => {
                self.enqueue(key, *lane);
            }
            Some(_) | None => {}
        }
    }

    /// Tells the time, from which it follows how long keys wait and run. What happened since it was last
    /// told counts as happening now, which is never long ago: whoever wakes a key then starts what is due.
    pub fn set_now(&mut self, now: Instant) {
        self.now = Some(now);
        for line in self.lanes.values_mut() {
            for (_, key) in line.ready.iter().rev().take(line.fresh) {
                if let Some(Entry {
                    state: State::Ready { since, .. },
                    ..
                }) = self.entries.get_mut(key)
                {
                    since.get_or_insert(now);
                }
            }
            line.fresh = 0;
        }
    }

    /// Moves keys whose backoff has ended into their lanes.
    pub fn advance(&mut self, now: Instant) {
        self.set_now(now);
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            let Some(Entry {
                state: State::Waiting { lane, .. },
                ..
            }) = self.entries.get(&key)
            else {
                continue;
            };
            self.enqueue(&key, *lane);
        }
    }

    /// When [`Queue::advance`] is next worth calling.
    pub fn next_advance(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((until, _), _)| *until)
    }

    /// Takes the key that is to run next, if a lane has both work and a free place.
    pub fn start(&mut self) -> Option<(Key, Lane)> {
        let after = self.served;
        let order = Lane::ALL;
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
        while let Some((sequence, key)) = line.ready.pop_front() {
            line.fresh = line.fresh.min(line.ready.len());
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            if let State::Ready {
                lane: l,
                sequence: t,
                since,
            } = entry.state
                && l == lane
                && t == sequence
            {
                entry.state = State::Running {
                    lane,
                    again: false,
                    since: self.now,
                };
                line.running += 1;
                let waited = elapsed(since, self.now);
                self.metrics_mut(lane).waited.observe_duration(waited);
                return Some(key);
            }
        }
        None
    }

    /// The run of `key` is over. Says whether it was woken meanwhile. The key is no longer in the
    /// queue; what it needs next is the caller's to say, by [`Queue::enqueue`].
    pub fn finish(&mut self, key: &Key) -> Finished {
        let Some(entry) = self.entries.remove(key) else {
            return Finished::default();
        };
        match entry.state {
            State::Running { lane, again, since } => {
                self.line(lane).running -= 1;
                let worked = elapsed(since, self.now);
                self.metrics_mut(lane).worked.observe_duration(worked);
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

    fn line(&mut self, lane: Lane) -> &mut LaneQueue {
        self.lanes
            .get_mut(&lane)
            .expect("every lane must have its line from the start")
    }

    fn metrics_mut(&mut self, lane: Lane) -> &mut QueueMetrics {
        match lane {
            Lane::Attach | Lane::Detach | Lane::Repair => &mut self.attachments,
            Lane::Volume => &mut self.volumes,
        }
    }

    fn sequence(&mut self) -> u64 {
        self.sequences += 1;
        self.sequences
    }
}

/// The longest that two keys which failed together are kept apart, as a share of their delay.
const JITTER: f64 = 0.2;

fn elapsed(since: Option<Instant>, now: Option<Instant>) -> Duration {
    match (since, now) {
        (Some(since), Some(now)) => now.saturating_duration_since(since),
        (None, _) | (_, None) => Duration::ZERO,
    }
}

fn jittered(delay: Duration, jitter: f64) -> Duration {
    delay.mul_f64(1.0 - JITTER * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests;
