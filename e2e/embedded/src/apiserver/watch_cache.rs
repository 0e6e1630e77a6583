//! A sliding window of changes, which watches read and which notifies them of new ones (`watchCache` of
//! `k8s.io/apiserver`).

use std::collections::VecDeque;

use tokio::sync::broadcast;

use super::stored::Change;

/// Maximum number of changes in the window of one value of the indexed field. There may be one per node. A watch that falls
/// further behind reads the window of the whole table.
const PART_CAPACITY: usize = 32;

/// Changes in the order of their revisions, without gaps since `compacted`.
#[derive(Debug)]
pub(crate) struct WatchCache {
    changes: VecDeque<Change>,
    /// Changes up to this revision are compacted.
    compacted: u64,
    /// Maximum number of changes.
    capacity: usize,
    /// Unlike a watch channel, it wakes its receivers in a fixed order, which keeps a simulation deterministic.
    changed: broadcast::Sender<()>,
}

/// The changes since a revision were compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The oldest revision from which changes are known.
    pub(crate) oldest: u64,
}

// === impl WatchCache ===

impl WatchCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            changes: VecDeque::new(),
            compacted: 0,
            capacity,
            changed: broadcast::Sender::new(1),
        }
    }

    /// An empty window for the changes after `revision` with one value of the indexed field.
    pub(crate) fn part_after(revision: u64) -> Self {
        Self {
            compacted: revision,
            ..Self::new(PART_CAPACITY)
        }
    }

    /// Adds a change, and returns the one that leaves the window.
    pub(crate) fn push(&mut self, change: Change) -> Option<Change> {
        self.changes.push_back(change);
        let forgotten = (self.changes.len() > self.capacity).then(|| self.changes.pop_front());
        let forgotten = forgotten.flatten();
        self.compacted = forgotten
            .as_ref()
            .map_or(self.compacted, |change| change.revision);
        self.notify();
        forgotten
    }

    /// Removes all changes up to `revision`, the newest one, and returns them.
    pub(crate) fn compact(&mut self, revision: u64) -> VecDeque<Change> {
        self.compacted = revision;
        self.notify();
        std::mem::take(&mut self.changes)
    }

    fn notify(&self) {
        // The send fails if there are no watches.
        self.changed.send(()).ok();
    }

    /// All changes in the window, newest first, if none after `revision` was compacted.
    pub(crate) fn changes_back_to(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, Compacted> {
        self.check(revision)?;
        let newer = move |change: &&Change| change.revision > revision;
        Ok(self.changes.iter().rev().take_while(newer))
    }

    /// Changes after `revision`, oldest first.
    pub(crate) fn changes_after(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, Compacted> {
        self.check(revision)?;
        let first = self.changes.partition_point(|change| change.revision <= revision);
        Ok(self.changes.range(first..))
    }

    fn check(&self, revision: u64) -> Result<(), Compacted> {
        if revision < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        Ok(())
    }

    /// Revision of the newest change.
    pub(crate) fn newest(&self) -> u64 {
        self.changes
            .back()
            .map_or(self.compacted, |change| change.revision)
    }

    /// A receiver that gets a message after each change.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<()> {
        self.changed.subscribe()
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.changed.receiver_count() > 0
    }
}
