//! Work queue: one entry per key, in lanes that do not starve one another.
//!
//! The queue holds keys: a sync reads the newest state when it starts, so that many events about one object cause one sync.
//! A key runs at most once at a time, whatever its lane. Attach and detach have lanes with limits of their own, so that slow
//! detaches do not delay an attach. In a lane the node with the fewest calls in flight is first, so that a node whose calls
//! hang does not take all slots. Limits that the driver's refusals taught delay keys of a node, or all
//! (docs/adr/0050-adaptive-concurrency.md).
//!
//! Time is an argument, and the order deterministic.

mod backoff;
mod dispatch;
mod failure;
mod flow_control;
mod interval;
mod lane;
mod limiter;
mod metrics;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use crate::model::PublishTarget;
pub use backoff::{Backoff, Class};
pub(crate) use failure::{Failures, Finished, Outcome, SyncError};
pub(crate) use flow_control::FlowControl;
use lane::{LaneQueue, Node};
pub(crate) use metrics::{ATTACHMENT_QUEUE, QueueMetrics, VOLUME_QUEUE};

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
    /// PersistentVolumes: our finalizer, and their handles on VolumeAttachments that lack them.
    PersistentVolume,
}

/// The concurrency of each lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `--attach-concurrency`.
    pub attach: usize,
    /// `--detach-concurrency`.
    pub detach: usize,
    /// PersistentVolume finalizers.
    pub volume: usize,
    /// `--max-driver-calls`: attaches, detaches and repairs together; 0: no bound.
    pub driver_calls: usize,
    /// `--adaptive-concurrency`: whether refusals lower the concurrency.
    pub adaptive: bool,
}

impl Limits {
    /// Repairs, besides attaches and detaches.
    pub(crate) fn repair(&self) -> usize {
        (self.attach / 2).max(1)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Queue {
    entries: HashMap<Key, Entry>,
    /// In the order of [`Lane::ALL`].
    lanes: [LaneQueue; Lane::ALL.len()],
    /// Keys in backoff, by its end.
    waiting: BTreeMap<(Instant, i64), Key>,
    backoff: Backoff,
    /// The last sequence that was given to a key, and the first: smaller ones are for keys that go first.
    sequence: i64,
    front: i64,
    flow: FlowControl,
    max_driver_calls: usize,
    /// The times at which blocked nodes may start a call, and at which the driver takes one.
    node_permits: BTreeSet<(Instant, Node)>,
    driver_permit: Option<Instant>,
    /// The key that was woken last to probe the driver.
    probing: Option<Key>,
    /// The lane that was served last, for round robin.
    served: Lane,
    /// The current time: the start time of keys that are queued or start to run.
    pub(crate) now: Instant,
}

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) lane: Lane,
    pub(crate) stage: Stage,
    /// The node that its calls are for.
    pub(crate) node: Node,
    /// Its last failure, while the same operation on the same object keeps failing.
    pub(crate) failures: Option<Failures>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits for a free slot of its lane.
    Ready { sequence: i64, since: Instant },
    Running {
        /// Whether it was enqueued meanwhile.
        dirty: bool,
        since: Instant,
        sequence: i64,
        /// Whether its last call was refused because of other calls.
        contended: bool,
    },
    /// It is in backoff. The number distinguishes equal times.
    Waiting { until: (Instant, i64) },
}

// === impl Lane ===

impl Lane {
    pub(crate) const ALL: [Self; 4] = [Self::Attach, Self::Detach, Self::Repair, Self::PersistentVolume];
    /// Those that call the driver.
    const CALLING: [Self; 3] = [Self::Attach, Self::Detach, Self::Repair];

    /// Its name in metrics and on `/statusz`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Attach => "attach",
            Self::Detach => "detach",
            Self::Repair => "repair",
            Self::PersistentVolume => "release",
        }
    }
}

// === impl Queue ===

impl Queue {
    pub(crate) fn new(limits: Limits, backoff: Backoff, now: Instant) -> Self {
        let attachments = QueueMetrics::new(ATTACHMENT_QUEUE);
        let volumes = QueueMetrics::new(VOLUME_QUEUE);
        let lane = |lane| match lane {
            Lane::Attach => LaneQueue::new(limits.attach, attachments.clone()),
            Lane::Detach => LaneQueue::new(limits.detach, attachments.clone()),
            Lane::Repair => LaneQueue::new(limits.repair(), attachments.clone()),
            Lane::PersistentVolume => LaneQueue::new(limits.volume, volumes.clone()),
        };
        Self {
            entries: HashMap::new(),
            lanes: Lane::ALL.map(lane),
            waiting: BTreeMap::new(),
            backoff,
            sequence: 0,
            front: 0,
            flow: FlowControl::new(limits.adaptive, now),
            max_driver_calls: limits.driver_calls,
            node_permits: BTreeSet::new(),
            driver_permit: None,
            probing: None,
            served: Lane::PersistentVolume,
            now,
        }
    }

    /// Enqueues `key`, whose calls are for `node`, ending its backoff. A running key is marked dirty, as [`Queue::finish`]
    /// returns.
    pub(crate) fn enqueue(&mut self, key: &Key, lane: Lane, node: Option<&Arc<str>>) {
        match self
            .entries
            .get_mut(key)
            .map(|entry| (entry.lane, &mut entry.stage))
        {
            Some((_, Stage::Running { dirty, .. })) => {
                *dirty = true;
                return;
            }
            Some((queued, Stage::Ready { .. })) if queued == lane => return,
            Some((_, Stage::Ready { .. } | Stage::Waiting { .. })) | None => {}
        }
        let failures = self.remove(key).and_then(|entry| entry.failures);
        self.sequence += 1;
        self.insert_ready(key, lane, node.cloned(), self.sequence, failures);
        self.lanes[lane as usize].metrics.adds.inc();
    }

    fn insert_ready(&mut self, key: &Key, lane: Lane, node: Node, sequence: i64, failures: Option<Failures>) {
        let in_flight = self.flow.in_flight(node.as_ref());
        self.lanes[lane as usize].insert(&node, sequence, key.clone(), in_flight);
        let since = self.now;
        let entry = Entry {
            lane,
            stage: Stage::Ready { sequence, since },
            node,
            failures,
        };
        self.entries.insert(key.clone(), entry);
    }

    /// Like [`Queue::enqueue`] for a key that runs or is in backoff, in its lane, which must be one of `lanes`. Ignores other
    /// keys.
    pub(crate) fn enqueue_if_pending(&mut self, key: &Key, lanes: &[Lane]) {
        let Some(Entry {
            lane, stage, node, ..
        }) = self.entries.get(key)
        else {
            return;
        };
        if lanes.contains(lane) && !matches!(stage, Stage::Ready { .. }) {
            let (lane, node) = (*lane, node.clone());
            self.enqueue(key, lane, node.as_ref());
        }
    }

    /// Moves a ready key before all others of its lane and node.
    pub(crate) fn move_to_front(&mut self, key: &Key) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if let Stage::Ready { sequence, .. } = &mut entry.stage {
            self.front -= 1;
            let before = std::mem::replace(sequence, self.front);
            let in_flight = self.flow.in_flight(entry.node.as_ref());
            let lane = &mut self.lanes[entry.lane as usize];
            lane.remove(&entry.node, before, in_flight);
            lane.insert(&entry.node, self.front, key.clone(), in_flight);
        }
    }

    /// Removes `key`, unless it is running.
    pub(crate) fn forget(&mut self, key: &Key) {
        if self.is_running(key) {
            let entry = self.entries.get_mut(key);
            entry.into_iter().for_each(|entry| entry.failures = None);
        } else {
            self.remove(key);
        }
    }

    /// Removes a key that does not run.
    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        match entry.stage {
            Stage::Running { .. } => {}
            Stage::Waiting { until } => drop(self.waiting.remove(&until)),
            Stage::Ready { sequence, .. } => {
                let in_flight = self.flow.in_flight(entry.node.as_ref());
                self.lanes[entry.lane as usize].remove(&entry.node, sequence, in_flight);
            }
        }
        Some(entry)
    }

    pub(crate) fn is_running(&self, key: &Key) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| matches!(entry.stage, Stage::Running { .. }))
    }

    pub(crate) fn entry(&self, key: &Key) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// The first failure of a key in backoff.
    pub(crate) fn waiting_since(&self, key: &Key) -> Option<Instant> {
        let entry = self.entries.get(key)?;
        matches!(entry.stage, Stage::Waiting { .. }).then(|| entry.since(self.now))
    }

    /// All keys, unordered.
    pub(crate) fn items(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.entries.iter()
    }

    /// Learned limits and outages.
    pub(crate) fn flow(&self) -> &FlowControl {
        &self.flow
    }

    /// Metrics of a lane, which it shares with all lanes of the same kind of keys.
    pub(crate) fn metrics(&self, lane: Lane) -> &QueueMetrics {
        &self.lanes[lane as usize].metrics
    }

    pub(crate) fn limit(&self, lane: Lane) -> usize {
        self.lanes[lane as usize].limit
    }

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
