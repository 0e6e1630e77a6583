//! The array as it was: for a listing that is behind, as those of real arrays and their caches are.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::backend::{Array, Change};

/// An array that follows another one at a distance.
#[derive(Debug)]
pub(super) struct Past {
    /// Tells it from other pasts.
    pub(super) number: u64,
    array: Array,
    /// What has happened since, and when.
    later: VecDeque<(Instant, Change)>,
}

// === impl Past ===

impl Past {
    /// Begins to fall behind.
    pub(super) fn of(array: &Array, number: u64) -> Self {
        Self {
            number,
            array: array.twin(),
            later: VecDeque::new(),
        }
    }

    /// Takes note of what happened.
    pub(super) fn note(&mut self, change: &Change) {
        self.later.push_back((Instant::now(), change.clone()));
    }

    /// The array of so long ago; of the beginning without an age, or when it is not that old yet.
    pub(super) fn at(&mut self, age: Option<Duration>) -> &Array {
        let now = Instant::now();
        let is_due = |time: Instant| age.is_some_and(|age| now.duration_since(time) >= age);
        while self.later.front().is_some_and(|(time, _)| is_due(*time)) {
            if let Some((_, change)) = self.later.pop_front() {
                self.array.apply(change);
            }
        }
        &self.array
    }
}
