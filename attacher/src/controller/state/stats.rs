//! Statistics of the work queue for metrics and `/statusz`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use prometheus::Histogram;
use serde::Serialize;

use super::ControllerState;
use crate::metrics::histogram;
use crate::workqueue::{Entry, Failures, Key, Lane, Stage};

/// The unfinished items of a lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct QueueStats {
    pub(crate) limit: usize,
    pub(crate) running: usize,
    pub(crate) ready: usize,
    pub(crate) waiting: usize,
    /// The oldest creation or deletion timestamp of an unfinished item.
    #[serde(skip)]
    pub(crate) oldest: Option<Timestamp>,
    /// Time for which the oldest item has been running, waiting or failing.
    #[serde(skip)]
    pub(crate) longest: Duration,
    /// The sum of the running items' times.
    #[serde(skip)]
    pub(crate) unfinished: Duration,
    /// The longest of them.
    #[serde(skip)]
    pub(crate) longest_running: Duration,
}

/// Which caches are synced. No sync starts before all are: a node that is not listed yet looks deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CachesSynced {
    pub(crate) attachments: bool,
    pub(crate) volumes: bool,
    pub(crate) nodes: bool,
}

/// Latencies since the start. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct LatencyMetrics {
    /// From the creation of a VolumeAttachment to `status.attached`.
    pub(crate) attached: Histogram,
    /// From the deletion of a VolumeAttachment to the removal of our finalizer.
    pub(crate) detached: Histogram,
}

/// Kubernetes' timestamps have a resolution of one second.
const END_TO_END_BOUNDS: &[f64] = &[
    1.0, 2.0, 3.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0,
];

// === impl ControllerState ===

impl ControllerState {
    pub(crate) fn lanes(&self, now: Instant) -> BTreeMap<Lane, QueueStats> {
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
        for (key, entry) in self.queue.items() {
            let has_age = !matches!(key, Key::Target(target) if self.waiting_orphans.contains(target));
            lanes
                .entry(entry.lane)
                .or_default()
                .add(entry, self.requested_at(key), has_age, now);
        }
        lanes
    }

    /// The resources in the caches, whether the cache is synced, and its objects.
    pub(crate) fn caches(&self) -> [(&'static str, bool, usize); 3] {
        let (synced, index) = (self.caches_synced, &self.index);
        [
            ("volumeattachments", synced.attachments, index.attachments.len()),
            ("persistentvolumes", synced.volumes, index.volumes.len()),
            ("csinodes", synced.nodes, index.nodes.len()),
        ]
    }

    /// At most `most` items in this stage, sorted by the time for which they have been failing, running or waiting,
    /// longest first.
    pub(crate) fn longest(
        &self,
        stage: fn(&Stage) -> bool,
        now: Instant,
        most: usize,
    ) -> Vec<(&Key, &Entry)> {
        let items = self.queue.items().filter(|(_, entry)| stage(&entry.stage));
        let mut items: Vec<_> = items.collect();
        // Keys make the order deterministic.
        let by_age = |(key, entry): &(&Key, &Entry)| (entry.since(now), (*key).clone());
        if items.len() > most {
            items.select_nth_unstable_by_key(most, by_age);
            items.truncate(most);
        }
        items.sort_unstable_by_key(by_age);
        items
    }

    /// What a ready item, or one in backoff for a failure of the driver, waits for besides a slot of its lane.
    pub(crate) fn waits_for(&self, entry: &Entry, now: Instant) -> Option<String> {
        let flow = self.queue.flow();
        let node = entry.node.as_ref()?;
        let is_refused = matches!(entry.stage, Stage::Running { contended: true, .. });
        let is_ready = is_refused || matches!(entry.stage, Stage::Ready { .. });
        let is_driver_failure = !is_ready && entry.failures.as_ref().is_some_and(Failures::waits_for_driver);
        if let Some(since) = flow.down_since().filter(|_| is_ready || is_driver_failure) {
            let seconds = now.saturating_duration_since(since).as_secs();
            return Some(format!("waits for the driver (down for {seconds} s)"));
        }
        let (limit, interval) = flow.node_limit(node).filter(|_| is_ready)?;
        let interval = interval.map(|interval| format!(", one each {:.2} s", interval.as_secs_f64()));
        let failures = entry.failures.as_ref();
        let refused = failures.map(|failures| {
            let seconds = now.saturating_duration_since(failures.since).as_secs();
            format!(", refused for {seconds} s")
        });
        Some(format!(
            "waits for its turn on node {node} (limit {limit} learned{}){}",
            interval.unwrap_or_default(),
            refused.unwrap_or_default()
        ))
    }

    /// The creation or deletion timestamp of the item's object.
    pub(crate) fn requested_at(&self, key: &Key) -> Option<Timestamp> {
        match key {
            // A repair is not part of the wait since the creation.
            Key::Attachment(name) => {
                let attachment = self.index.attachments.get(name)?;
                let is_repair = self
                    .operation(attachment)
                    .is_some_and(|(_, lane)| lane == Lane::Repair);
                attachment.requested_at.filter(|_| !is_repair)
            }
            Key::Volume(_) | Key::Target(_) => None,
        }
    }
}

// === impl QueueStats ===

impl QueueStats {
    /// Without `has_age`, its wait is none that should end soon.
    fn add(&mut self, entry: &Entry, requested_at: Option<Timestamp>, has_age: bool, now: Instant) {
        match entry.stage {
            Stage::Ready { .. } => self.ready += 1,
            Stage::Running { since, .. } => {
                let elapsed = now.saturating_duration_since(since);
                self.running += 1;
                self.unfinished += elapsed;
                self.longest_running = self.longest_running.max(elapsed);
            }
            Stage::Waiting { .. } => self.waiting += 1,
        }
        if has_age {
            let longest = now.saturating_duration_since(entry.since(now));
            self.longest = self.longest.max(longest);
        }
        self.oldest = [self.oldest, requested_at].into_iter().flatten().min();
    }

    pub(crate) fn depth(&self) -> usize {
        self.running + self.ready + self.waiting
    }

    pub(crate) fn age(&self, now: Timestamp) -> Duration {
        let since = |oldest: Timestamp| now.duration_since(oldest);
        let since_timestamp = self
            .oldest
            .and_then(|oldest| since(oldest).try_into().ok())
            .unwrap_or_default();
        self.longest.max(since_timestamp)
    }
}

// === impl CachesSynced ===

impl CachesSynced {
    pub(crate) fn all(self) -> bool {
        self.attachments && self.volumes && self.nodes
    }
}

// === impl LatencyMetrics ===

impl Default for LatencyMetrics {
    fn default() -> Self {
        Self {
            attached: histogram(
                "csi_attacher_attach_duration_seconds",
                "Time from the creation of a VolumeAttachment to its status attached=true",
                END_TO_END_BOUNDS,
            ),
            detached: histogram(
                "csi_attacher_detach_duration_seconds",
                "Time from the deletion of a VolumeAttachment to the removal of the attacher's finalizer",
                END_TO_END_BOUNDS,
            ),
        }
    }
}

#[cfg(test)]
mod tests;
