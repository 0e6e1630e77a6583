//! The state of each key in the queue.

use std::sync::Arc;
use std::time::Instant;

use super::{Class, Entry, Key, Lane, Queue, QueueMetrics, State};

/// One key in the queue.
#[derive(Clone, Copy, Debug)]
pub struct KeyStatus<'q> {
    /// The key.
    pub key: &'q Key,
    /// Its lane.
    pub lane: Lane,
    /// Its stage.
    pub stage: Stage,
    /// Its last failure: the error, how many in a row, and since when.
    pub failure: Option<(&'q Arc<str>, u32, Instant)>,
}

/// The stage of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It waits for a free place of its lane.
    Ready {
        /// Since when; `None` until the time is set.
        since: Option<Instant>,
    },
    /// It runs.
    Running {
        /// Since when; `None` until the time is set.
        since: Option<Instant>,
    },
    /// It is in backoff.
    Waiting {
        /// Until when.
        until: Instant,
        /// The class of its failure.
        class: Class,
    },
}

// === impl Queue ===

impl Queue {
    /// All keys, unordered.
    pub fn items(&self) -> impl Iterator<Item = KeyStatus<'_>> {
        self.entries.iter().map(|(key, entry)| KeyStatus::new(key, entry))
    }

    /// How many items of a lane may run at once.
    pub fn limit(&self, lane: Lane) -> usize {
        self.lanes.get(&lane).map_or(0, |line| line.limit)
    }

    /// Metrics of a lane and of all lanes with the same kind of keys.
    pub(crate) fn metrics(&self, lane: Lane) -> &QueueMetrics {
        match lane {
            Lane::Attach | Lane::Detach | Lane::Repair => &self.attachments,
            Lane::Volume => &self.volumes,
        }
    }
}

// === impl KeyStatus ===

impl<'q> KeyStatus<'q> {
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

    /// Since its first failure in a row; without one, since its stage began.
    pub fn since(&self) -> Option<Instant> {
        let stage = match self.stage {
            Stage::Ready { since } | Stage::Running { since } => since,
            Stage::Waiting { .. } => None,
        };
        self.failure.map(|(_, _, since)| since).or(stage)
    }
}
