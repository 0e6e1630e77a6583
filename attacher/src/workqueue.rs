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
use std::time::Instant;

use crate::model::PublishTarget;
pub use backoff::{Backoff, Class};
pub(crate) use failure::{Failures, Finished, SyncError};
pub(crate) use metrics::{ATTACHMENT_QUEUE, QueueMetrics, VOLUME_QUEUE};

/// A key of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The VolumeAttachment of this name.
    Attachment(Arc<str>),
    /// The finalizer of the PersistentVolume of this name.
    Volume(Arc<str>),
    /// A publish target whose VolumeAttachment is gone.
    Target(PublishTarget),
}

/// The lanes, in round-robin order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// Attaches: a pod is waiting.
    Attach,
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
pub(crate) struct Queue {
    entries: HashMap<Key, Entry>,
    /// In the order of [`Lane::ALL`].
    lanes: [LaneQueue; Lane::ALL.len()],
    /// Keys in backoff, by its end.
    waiting: BTreeMap<(Instant, u64), Key>,
    backoff: Backoff,
    /// The last sequence that was given to a key.
    sequence: u64,
    /// The lane that was served last, for round robin.
    served: Lane,
    /// The current time: the start time of keys that are queued or start to run.
    pub(crate) now: Instant,
}

#[derive(Debug)]
struct LaneQueue {
    limit: usize,
    running: usize,
    /// Keys in the order of their sequences. A key whose entry has another sequence by now is skipped.
    ready: VecDeque<(u64, Key)>,
    metrics: QueueMetrics,
}

/// The state of one key.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) lane: Lane,
    pub(crate) stage: Stage,
    /// Its last failure, while the same operation on the same object keeps failing.
    pub(crate) failures: Option<Failures>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for a free slot of its lane.
    Ready { sequence: u64, since: Instant },
    /// It runs. `dirty` says whether it was enqueued meanwhile.
    Running { dirty: bool, since: Instant },
    /// It is in backoff. The number distinguishes equal times.
    Waiting { until: (Instant, u64) },
}

// === impl Lane ===

impl Lane {
    pub(crate) const ALL: [Self; 4] = [Self::Attach, Self::Detach, Self::Repair, Self::Volume];

    /// Its name in metrics and on `/statusz`.
    pub(crate) fn name(self) -> &'static str {
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
    pub(crate) fn new(limits: Limits, backoff: Backoff, now: Instant) -> Self {
        let attachments = QueueMetrics::new(ATTACHMENT_QUEUE);
        let volumes = QueueMetrics::new(VOLUME_QUEUE);
        let lane = |lane| LaneQueue {
            limit: match lane {
                Lane::Attach => limits.attach,
                Lane::Detach => limits.detach,
                Lane::Repair => (limits.attach / 2).max(1),
                Lane::Volume => limits.volume,
            },
            running: 0,
            ready: VecDeque::new(),
            metrics: match lane {
                Lane::Attach | Lane::Detach | Lane::Repair => attachments.clone(),
                Lane::Volume => volumes.clone(),
            },
        };
        Self {
            entries: HashMap::new(),
            lanes: Lane::ALL.map(lane),
            waiting: BTreeMap::new(),
            backoff,
            sequence: 0,
            served: Lane::Volume,
            now,
        }
    }

    /// Enqueues `key`, ending its backoff. A running key is marked dirty, as [`Queue::finish`] returns.
    pub(crate) fn enqueue(&mut self, key: &Key, lane: Lane) {
        let entry = self.entries.get_mut(key);
        let failures = match entry {
            None => None,
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
                entry.failures.take()
            }
        };
        self.sequence += 1;
        let stage = Stage::Ready {
            sequence: self.sequence,
            since: self.now,
        };
        let entry = Entry {
            lane,
            stage,
            failures,
        };
        self.entries.insert(key.clone(), entry);
        let queue = &mut self.lanes[lane as usize];
        queue.ready.push_back((self.sequence, key.clone()));
        queue.metrics.adds.inc();
    }

    /// Like [`Queue::enqueue`] for a key that runs or is in backoff, in its lane, which must be one of `lanes`. Ignores other
    /// keys.
    pub(crate) fn enqueue_if_pending(&mut self, key: &Key, lanes: &[Lane]) {
        let Some(Entry { lane, stage, .. }) = self.entries.get(key) else {
            return;
        };
        if lanes.contains(lane) && !matches!(stage, Stage::Ready { .. }) {
            self.enqueue(key, *lane);
        }
    }

    /// Sets the time, and moves keys whose backoff has ended into their lanes.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = now;
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            self.enqueue_if_pending(&key, &Lane::ALL);
        }
    }

    /// When [`Queue::advance`] is next worth calling.
    pub(crate) fn next_advance(&self) -> Option<Instant> {
        self.waiting.first_key_value().map(|((until, _), _)| *until)
    }

    /// Returns the next key of a lane with a free slot.
    pub(crate) fn start(&mut self) -> Option<(Key, Lane)> {
        let lanes = Lane::ALL.into_iter().cycle();
        let after_served = lanes.skip(self.served as usize + 1).take(Lane::ALL.len());
        for lane in after_served {
            if let Some(key) = self.start_in(lane) {
                self.served = lane;
                return Some((key, lane));
            }
        }
        None
    }

    fn start_in(&mut self, lane: Lane) -> Option<Key> {
        let queue = &mut self.lanes[lane as usize];
        if queue.running >= queue.limit {
            return None;
        }
        while let Some((place, key)) = queue.ready.pop_front() {
            if let Some(entry) = self.entries.get_mut(&key)
                && let Stage::Ready { sequence, since } = entry.stage
                && (sequence, entry.lane) == (place, lane)
            {
                queue.running += 1;
                let (dirty, now) = (false, self.now);
                entry.stage = Stage::Running { dirty, since: now };
                let waited = now.saturating_duration_since(since);
                queue.metrics.waited.observe(waited.as_secs_f64());
                return Some(key);
            }
        }
        None
    }

    /// Ends the run of `key`, which leaves the queue. The caller enqueues it again if necessary.
    pub(crate) fn finish(&mut self, key: &Key) -> Finished {
        let Some(&Entry {
            lane,
            stage: Stage::Running { dirty, since },
            ..
        }) = self.entries.get(key)
        else {
            return Finished::default();
        };
        let queue = &mut self.lanes[lane as usize];
        queue.running -= 1;
        let worked = self.now.saturating_duration_since(since);
        queue.metrics.worked.observe(worked.as_secs_f64());
        let failures = self.entries.remove(key).and_then(|entry| entry.failures);
        Finished { dirty, failures }
    }

    /// Removes `key`, unless it is running.
    pub(crate) fn forget(&mut self, key: &Key) {
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
    pub(crate) fn is_running(&self, key: &Key) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| matches!(entry.stage, Stage::Running { .. }))
    }

    /// All keys, unordered.
    pub(crate) fn items(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.entries.iter()
    }

    /// Metrics of a lane, which it shares with all lanes of the same kind of keys.
    pub(crate) fn metrics(&self, lane: Lane) -> &QueueMetrics {
        &self.lanes[lane as usize].metrics
    }

    /// Maximum number of running items of a lane.
    pub(crate) fn limit(&self, lane: Lane) -> usize {
        self.lanes[lane as usize].limit
    }

    /// Number of running keys in all lanes.
    pub(crate) fn running(&self) -> usize {
        self.lanes.iter().map(|queue| queue.running).sum()
    }
}

// === impl Entry ===

impl Entry {
    /// The time of its first consecutive failure; without one, the time at which its stage began.
    pub(crate) fn since(&self, now: Instant) -> Instant {
        match (&self.failures, self.stage) {
            (Some(failures), _) => failures.since,
            (None, Stage::Ready { since, .. } | Stage::Running { since, .. }) => since,
            (None, Stage::Waiting { .. }) => now,
        }
    }
}

#[cfg(test)]
mod tests;
