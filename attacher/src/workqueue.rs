//! Work queue: one entry per key, in lanes that do not starve one another.
//!
//! The queue holds keys: a sync reads the newest state when it starts, so that many events about one object cause one sync.
//! A key runs at most once at a time, whatever its lane. Attach and detach have lanes with limits of their own, so that slow
//! detaches do not delay an attach.
//!
//! Time is an argument, and the order deterministic.

mod backoff;
mod failure;
mod metrics;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::PublishTarget;
pub use backoff::{Backoff, Class};
pub use failure::{Failure, Failures, Finished};
pub(crate) use metrics::{ATTACHMENT_QUEUE, QueueMetrics, VOLUME_QUEUE};

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// The VolumeAttachment of this name.
    Attachment(Arc<str>),
    /// The finalizer of the PersistentVolume of this name.
    Volume(Arc<str>),
    /// A publish target whose VolumeAttachment is gone.
    Target(PublishTarget),
}

/// The lanes, in round-robin order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Attaches: a pod is waiting.
    Attach,
    /// Detaches.
    Detach,
    /// Attaches and detaches that reconcile requests, while the volume may be in use.
    Repair,
    /// PersistentVolume finalizers.
    Volume,
}

/// The concurrency of each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `--attach-concurrency`. Repairs have half of it in addition.
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
    /// Keys in backoff, by its end.
    waiting: BTreeMap<(Instant, u64), Key>,
    backoff: Backoff,
    sequences: u64,
    /// The lane that was served last, for round robin.
    served: Lane,
    /// The last time that was set.
    now: Option<Instant>,
    attachments: QueueMetrics,
    volumes: QueueMetrics,
}

#[derive(Debug)]
struct LaneQueue {
    limit: usize,
    running: usize,
    /// Keys in the order of their sequences. A key whose entry has another sequence by now is skipped.
    ready: VecDeque<(u64, Key)>,
    /// How many at its end were added since the time was last set.
    untimed: usize,
}

/// The state of one key.
#[derive(Debug)]
pub struct Entry {
    /// Its lane.
    pub lane: Lane,
    /// Its stage.
    pub stage: Stage,
    /// Its last failure, for as long as the same operation on the same object keeps failing.
    pub failures: Option<Failures>,
}

/// The stage of a key. `since` is `None` until the time is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for a free place of its lane.
    Ready {
        /// Its place in the queue.
        sequence: u64,
        /// Since when.
        since: Option<Instant>,
    },
    /// It runs.
    Running {
        /// Whether it was enqueued meanwhile.
        dirty: bool,
        /// Since when.
        since: Option<Instant>,
    },
    /// It is in backoff.
    Waiting {
        /// Until when; the number distinguishes equal times.
        until: (Instant, u64),
    },
}

// === impl Lane ===

impl Lane {
    /// All lanes.
    pub const ALL: [Self; 4] = [Self::Attach, Self::Detach, Self::Repair, Self::Volume];

    /// Its name in metrics and on `/statusz`.
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
        let queue = |limit| LaneQueue {
            limit,
            running: 0,
            ready: VecDeque::new(),
            untimed: 0,
        };
        Self {
            entries: HashMap::new(),
            lanes: BTreeMap::from([
                (Lane::Attach, queue(limits.attach)),
                (Lane::Detach, queue(limits.detach)),
                (Lane::Repair, queue((limits.attach / 2).max(1))),
                (Lane::Volume, queue(limits.volume)),
            ]),
            waiting: BTreeMap::new(),
            backoff,
            sequences: 0,
            served: Lane::Volume,
            now: None,
            attachments: QueueMetrics::new(ATTACHMENT_QUEUE),
            volumes: QueueMetrics::new(VOLUME_QUEUE),
        }
    }

    /// Enqueues `key`, ending its backoff. A running key is marked dirty, as [`Queue::finish`] returns.
    pub fn enqueue(&mut self, key: &Key, lane: Lane) {
        let sequence = self.sequence();
        let stage = Stage::Ready {
            sequence,
            since: None,
        };
        match self.entries.get_mut(key) {
            Some(entry) => {
                match &mut entry.stage {
                    Stage::Running { dirty, .. } => {
                        *dirty = true;
                        return;
                    }
                    Stage::Ready { .. } if entry.lane == lane => return,
                    Stage::Ready { .. } => {}
                    Stage::Waiting { until } => {
                        self.waiting.remove(until);
                    }
                }
                entry.lane = lane;
                entry.stage = stage;
            }
            None => {
                let entry = Entry {
                    lane,
                    stage,
                    failures: None,
                };
                self.entries.insert(key.clone(), entry);
            }
        }
        let queue = self.lane_queue(lane);
        queue.ready.push_back((sequence, key.clone()));
        queue.untimed += 1;
        self.metrics(lane).adds.inc();
    }

    /// Like [`Queue::enqueue`] for a key that runs or is in backoff, in its lane. Ignores other keys.
    pub fn enqueue_if_pending(&mut self, key: &Key) {
        self.enqueue_if_pending_in(key, &Lane::ALL);
    }

    /// Like [`Queue::enqueue_if_pending`], for a key in one of these lanes.
    pub fn enqueue_if_pending_in(&mut self, key: &Key, lanes: &[Lane]) {
        let Some(Entry { lane, stage, .. }) = self.entries.get(key) else {
            return;
        };
        if lanes.contains(lane) && !matches!(stage, Stage::Ready { .. }) {
            self.enqueue(key, *lane);
        }
    }

    /// Sets the time, by which the queue measures how long keys wait and run. Keys that were added since it was last set count
    /// as added now.
    pub fn set_now(&mut self, now: Instant) {
        self.now = Some(now);
        for queue in self.lanes.values_mut() {
            for (_, key) in queue.ready.iter().rev().take(queue.untimed) {
                if let Some(entry) = self.entries.get_mut(key)
                    && let Stage::Ready { since, .. } = &mut entry.stage
                {
                    since.get_or_insert(now);
                }
            }
            queue.untimed = 0;
        }
    }

    /// Moves keys whose backoff has ended into their lanes.
    pub fn advance(&mut self, now: Instant) {
        self.set_now(now);
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            self.enqueue_if_pending(&key);
        }
    }

    /// When [`Queue::advance`] is next worth calling.
    pub fn next_advance(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((until, _), _)| *until)
    }

    /// Takes the next key of a lane that has a free place.
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
        let queue = self
            .lanes
            .get_mut(&lane)
            .filter(|queue| queue.running < queue.limit)?;
        while let Some((sequence, key)) = queue.ready.pop_front() {
            queue.untimed = queue.untimed.min(queue.ready.len());
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            if let Stage::Ready {
                sequence: newest,
                since,
            } = entry.stage
                && entry.lane == lane
                && newest == sequence
            {
                entry.stage = Stage::Running {
                    dirty: false,
                    since: self.now,
                };
                queue.running += 1;
                let waited = elapsed(since, self.now);
                self.metrics(lane).waited.observe(waited.as_secs_f64());
                return Some(key);
            }
        }
        None
    }

    /// Ends the run of `key`, which leaves the queue. The caller enqueues it dirty if necessary.
    pub fn finish(&mut self, key: &Key) -> Finished {
        let Some(Entry { lane, stage, .. }) = self.entries.get(key) else {
            return Finished::default();
        };
        let &Stage::Running { dirty, since } = stage else {
            return Finished::default();
        };
        let lane = *lane;
        self.lane_queue(lane).running -= 1;
        let worked = elapsed(since, self.now);
        self.metrics(lane).worked.observe(worked.as_secs_f64());
        let failures = self.entries.remove(key).and_then(|entry| entry.failures);
        Finished { dirty, failures }
    }

    /// Removes `key`, unless it is running.
    pub fn forget(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        entry.failures = None;
        match entry.stage {
            Stage::Running { .. } => return,
            Stage::Waiting { until } => {
                self.waiting.remove(&until);
            }
            Stage::Ready { .. } => {}
        }
        self.entries.remove(key);
    }

    /// Whether `key` is running.
    pub fn is_running(&self, key: &Key) -> bool {
        self.entries
            .get(key)
            .is_some_and(|entry| matches!(entry.stage, Stage::Running { .. }))
    }

    /// All keys, unordered.
    pub fn items(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.entries.iter()
    }

    /// How many items of a lane may run at once.
    pub fn limit(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).map_or(0, |queue| queue.limit)
    }

    /// How many keys run in all lanes.
    pub fn running(&self) -> usize {
        self.lanes.values().map(|queue| queue.running).sum()
    }

    fn lane_queue(&mut self, lane: Lane) -> &mut LaneQueue {
        self.lanes
            .get_mut(&lane)
            .expect("every lane exists from the start")
    }

    fn sequence(&mut self) -> u64 {
        self.sequences += 1;
        self.sequences
    }
}

// === impl Entry ===

impl Entry {
    /// Since its first failure in a row; without one, since its stage began.
    pub fn since(&self) -> Option<Instant> {
        let stage = match self.stage {
            Stage::Ready { since, .. } | Stage::Running { since, .. } => since,
            Stage::Waiting { .. } => None,
        };
        self.failures.as_ref().map(|failures| failures.since).or(stage)
    }
}

/// The maximal jitter as a part of the delay.
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
