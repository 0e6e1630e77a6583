//! The queue's content, to be looked at.

use std::sync::Arc;
use std::time::Instant;

use super::{Class, Entry, Key, Lane, Queue, QueueMetrics, State};

/// One key in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Item<'q> {
    /// The key.
    pub key: &'q Key,
    /// Its lane.
    pub lane: Lane,
    /// How far it is.
    pub stage: Stage,
    /// Its last failure: what it was, how often in a row it failed, and since when.
    pub failure: Option<(&'q Arc<str>, u32, Instant)>,
}

/// How far a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It stands in line for a free place of its lane. Without a time it has only just come.
    Ready {
        /// Since when.
        since: Option<Instant>,
    },
    /// It runs.
    Running {
        /// Since when.
        since: Option<Instant>,
    },
    /// It waits before it is tried again.
    Waiting {
        /// Until when.
        until: Instant,
        /// What for.
        class: Class,
    },
}

// === impl Queue ===

impl Queue {
    /// All keys, in no order.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.entries.iter().map(|(key, entry)| Item::new(key, entry))
    }

    /// How many items of a lane may run at once.
    pub fn limit(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).map_or(0, |line| line.limit)
    }

    /// What happened so far to the keys of a lane and of all lanes with the same kind of keys.
    pub fn metrics(&self, lane: Lane) -> &QueueMetrics {
        match lane {
            Lane::Attach | Lane::Detach | Lane::Repair => &self.attachments,
            Lane::Volume => &self.volumes,
        }
    }
}

// === impl Item ===

impl<'q> Item<'q> {
    fn new(key: &'q Key, entry: &'q Entry) -> Self {
        let (lane, stage) = match entry.state {
            State::Ready { lane, since, .. } => (lane, Stage::Ready { since }),
            State::Running { lane, since, .. } => (lane, Stage::Running { since }),
            State::Waiting { lane, until } => {
                let class = entry
                    .failure
                    .as_ref()
                    .map_or(Class::Final, |failure| failure.class);
                let until = until.0;
                (lane, Stage::Waiting { until, class })
            }
        };
        let failure = entry
            .failure
            .as_ref()
            .map(|failure| (&failure.message, failure.times, failure.since));
        Self {
            key,
            lane,
            stage,
            failure,
        }
    }

    /// Since when it is as it is now: since its first failure in a row, if there was one.
    pub fn since(&self) -> Option<Instant> {
        let stage = match self.stage {
            Stage::Ready { since } | Stage::Running { since } => since,
            Stage::Waiting { .. } => None,
        };
        self.failure.map(|(_, _, since)| since).or(stage)
    }
}
