//! The state as seen from outside: how much there is to do, what is being done, and what is in the
//! way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::{ControllerState, Event, LastRound};
use crate::informer::{Change, Known};
use crate::metrics::Histogram;
use crate::plan::Operation;
use crate::workqueue::{self, Class, Item, Key, Lane, Stage};

/// What there is at one moment. It is looked at, not kept: nothing in it can drift.
#[derive(Clone, Debug)]
pub struct Stats {
    /// Each lane.
    pub lanes: BTreeMap<Lane, QueueStats>,
    /// What runs, the longest first; at most as many as were asked for, as in the two that follow.
    pub running: Vec<Pending>,
    /// What stands in line for a free place of its lane, the first first.
    pub ready: Vec<Pending>,
    /// What waits before it is tried again, what has been failing for longest first.
    pub waiting: Vec<Pending>,
    /// What the work queue of VolumeAttachments has seen.
    pub attachments: workqueue::QueueMetrics,
    /// What the work queue of PersistentVolumes has seen.
    pub volumes: workqueue::QueueMetrics,
    /// Which lists are complete.
    pub listed: Listed,
    /// How many objects are known.
    pub known: Known,
    /// What was reached.
    pub reached: LatencyMetrics,
    /// What surveys of the driver's volumes found.
    pub surveys: super::ReconcileMetrics,
    /// The last of them.
    pub last_survey: Option<LastRound>,
}

/// One lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// How many may run at once.
    pub limit: usize,
    /// How many run.
    pub running: usize,
    /// How many stand in line for a free place.
    pub ready: usize,
    /// How many wait before they are tried again.
    pub waiting: usize,
    /// When the oldest wish was made that is not fulfilled yet, where the object tells.
    pub oldest: Option<Timestamp>,
    /// How long the oldest key has been running, standing in line or failing.
    pub longest: Duration,
    /// How long all that runs has been running, added up.
    pub unfinished: Duration,
    /// How long the longest of them has been running.
    pub longest_running: Duration,
}

/// One piece of unfinished work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// On what.
    pub key: Key,
    /// What kind of work.
    pub lane: Lane,
    /// Which node it is about.
    pub node: Option<Arc<str>>,
    /// Which PersistentVolume it is about.
    pub volume: Option<Arc<str>>,
    /// When the wish for it was made.
    pub wanted_since: Option<Timestamp>,
    /// How long it has been running or standing in line; nothing while it waits to be tried again.
    pub elapsed: Duration,
    /// When it will be tried again, and what it waits out.
    pub next: Option<(Duration, Class)>,
    /// What went wrong last.
    pub failure: Option<LastFailure>,
}

/// What went wrong last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// What it was.
    pub message: Arc<str>,
    /// How often in a row it failed.
    pub times: u32,
    /// How long ago that began.
    pub since: Duration,
}

/// Which of the first lists are complete. Before all are, no work starts: a node that is not listed
/// yet looks like a node that does not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listed {
    /// Of VolumeAttachments.
    pub attachments: bool,
    /// Of PersistentVolumes.
    pub volumes: bool,
    /// Of CSINodes.
    pub nodes: bool,
}

/// What was reached since the start.
#[derive(Clone, Debug)]
pub struct LatencyMetrics {
    /// From the creation of VolumeAttachments to the moment when their status said that they are attached.
    pub attached: Histogram,
    /// From the deletion of VolumeAttachments to the moment when our finalizer was off.
    pub detached: Histogram,
}

/// Kubernetes' timestamps have seconds, so nothing finer would be true.
const END_TO_END_BOUNDS: &[f64] = &[
    1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

// === impl ControllerState ===

impl ControllerState {
    /// What there is at this moment, with at most `most` pieces of work by name for each stage.
    pub fn stats(&self, now: Instant, most: usize) -> Stats {
        let mut lanes: BTreeMap<Lane, QueueStats> = Lane::ALL
            .map(|lane| {
                let limit = self.queue.limit(lane);
                let stats = QueueStats {
                    limit,
                    ..QueueStats::default()
                };
                (lane, stats)
            })
            .into();
        for item in self.queue.items() {
            lanes
                .entry(item.lane)
                .or_default()
                .add(&item, self.wanted_since(item.key), now);
        }
        let first = |stage: fn(&Stage) -> bool| {
            let items = self.queue.items().filter(|item| stage(&item.stage)).collect();
            self.longest(items, now, most)
        };
        Stats {
            lanes,
            running: first(|stage| matches!(stage, Stage::Running { .. })),
            ready: first(|stage| matches!(stage, Stage::Ready { .. })),
            waiting: first(|stage| matches!(stage, Stage::Waiting { .. })),
            attachments: self.queue.metrics(Lane::Attach).clone(),
            volumes: self.queue.metrics(Lane::Volume).clone(),
            listed: self.listed,
            known: self.index.known(),
            reached: self.latency.clone(),
            surveys: self.tally(),
            last_survey: self.last_round().cloned(),
        }
    }

    /// Which lists are complete.
    pub fn listed(&self) -> Listed {
        self.listed
    }

    /// Sets the time, by which the queue measures how long items wait.
    pub fn set_now(&mut self, now: Instant) {
        self.queue.set_now(now);
    }

    /// Whether no sync is under way, and no target is still to be unpublished that no other process knows of.
    pub fn is_idle(&self) -> bool {
        self.queue.running() == 0 && !self.has_abandoned_targets()
    }

    /// Observes the time from the request of an operation to its end.
    pub fn observe_latency(&mut self, operation: Operation, after: Duration) {
        match operation {
            Operation::Attach => &mut self.latency.attached,
            Operation::Detach => &mut self.latency.detached,
        }
        .observe_duration(after);
    }

    fn wanted_since(&self, key: &Key) -> Option<Timestamp> {
        match key {
            // What a repair is for was reached long ago, and nobody waits since then.
            Key::Attachment(name) => {
                self.index
                    .attachment(name)
                    .filter(|attachment| self.lane(attachment) != Some(Lane::Repair))?
                    .wanted_since
            }
            Key::Volume(_) | Key::Target(_) => None,
        }
    }

    fn longest(&self, mut items: Vec<Item<'_>>, now: Instant, most: usize) -> Vec<Pending> {
        // Keys make the order of what came at the same moment the same each time.
        let by_age = |item: &Item<'_>| (item.since().unwrap_or(now), item.key.clone());
        if items.len() > most {
            items.select_nth_unstable_by_key(most, by_age);
            items.truncate(most);
        }
        items.sort_unstable_by_key(by_age);
        items.into_iter().map(|item| self.pending(&item, now)).collect()
    }

    fn pending(&self, item: &Item<'_>, now: Instant) -> Pending {
        let ago = |since: Instant| now.saturating_duration_since(since);
        let (elapsed, next) = match item.stage {
            Stage::Ready { since } | Stage::Running { since } => (since.map_or(Duration::ZERO, ago), None),
            Stage::Waiting { until, class } => (
                Duration::ZERO,
                Some((until.saturating_duration_since(now), class)),
            ),
        };
        let (node, volume) = match item.key {
            Key::Attachment(name) => match self.index.attachment(name) {
                Some(attachment) => (Some(attachment.node.clone()), attachment.volume_name().cloned()),
                None => (None, None),
            },
            Key::Volume(name) => (None, Some(name.clone())),
            Key::Target(target) => (
                self.abandoned.get(target).map(|a| a.attachment.node.clone()),
                None,
            ),
        };
        Pending {
            key: item.key.clone(),
            lane: item.lane,
            node,
            volume,
            wanted_since: self.wanted_since(item.key),
            elapsed,
            next,
            failure: item.failure.map(|(message, times, since)| LastFailure {
                message: message.clone(),
                times,
                since: ago(since),
            }),
        }
    }
}

// === impl QueueStats ===

impl QueueStats {
    fn add(&mut self, item: &Item<'_>, wanted_since: Option<Timestamp>, now: Instant) {
        let ago = |since: Option<Instant>| {
            since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
        };
        match item.stage {
            Stage::Ready { .. } => self.ready += 1,
            Stage::Running { since } => {
                self.running += 1;
                self.unfinished += ago(since);
                self.longest_running = self.longest_running.max(ago(since));
            }
            Stage::Waiting { .. } => self.waiting += 1,
        }
        self.longest = self.longest.max(ago(item.since()));
        self.oldest = [self.oldest, wanted_since].into_iter().flatten().min();
    }

    /// How many pieces of work are not finished.
    pub fn depth(&self) -> usize {
        self.running + self.ready + self.waiting
    }

    /// How old the oldest of them is.
    pub fn age(&self, now: Timestamp) -> Duration {
        let since = |oldest: Timestamp| now.duration_since(oldest);
        let told = self
            .oldest
            .and_then(|oldest| since(oldest).try_into().ok())
            .unwrap_or_default();
        self.longest.max(told)
    }
}

// === impl Listed ===

impl Listed {
    /// Whether all are.
    pub fn all(self) -> bool {
        self.attachments && self.volumes && self.nodes
    }

    pub(super) fn note(&mut self, event: &Event) {
        match event {
            Event::Attachments(Change::Replaced) => self.attachments = true,
            Event::Volumes(Change::Replaced) => self.volumes = true,
            Event::Nodes(Change::Replaced) => self.nodes = true,
            Event::Attachments(_)
            | Event::Volumes(_)
            | Event::Nodes(_)
            | Event::DriverBack(_)
            | Event::VolumesListed(..)
            | Event::ListVolumesFailed(..)
            | Event::Resync => {}
        }
    }
}

// === impl LatencyMetrics ===

impl Default for LatencyMetrics {
    fn default() -> Self {
        Self {
            attached: Histogram::new(END_TO_END_BOUNDS),
            detached: Histogram::new(END_TO_END_BOUNDS),
        }
    }
}

#[cfg(test)]
mod tests;
