//! An earlier state of the array, for stale lists.
//!
//! Its memory is bounded even if it is never read: by the changes within its age or, if it is frozen, by its state.

use std::collections::VecDeque;

use tokio::time::Instant;

use crate::array::{Array, Row};
use crate::fault::StaleList;

/// An array that follows another one with a delay, or not at all.
#[derive(Debug)]
pub(super) struct StaleState {
    pub(super) freeze: StaleList,
    array: Array,
    later: VecDeque<(Instant, Vec<Row>)>,
}

// === impl StaleState ===

impl StaleState {
    pub(super) fn of(array: &Array, freeze: StaleList) -> Self {
        Self {
            freeze,
            array: array.clone(),
            later: VecDeque::new(),
        }
    }

    pub(super) fn note(&mut self, rows: &[Row]) {
        if self.freeze.age.is_some() && !rows.is_empty() {
            self.later.push_back((Instant::now(), rows.to_vec()));
            self.follow();
        }
    }

    /// The state at that age; the initial state if it is frozen or not that old yet.
    pub(super) fn now(&mut self) -> &Array {
        self.follow();
        &self.array
    }

    fn follow(&mut self) {
        let now = Instant::now();
        let is_due = |time: Instant| self.freeze.age.is_some_and(|age| now.duration_since(time) >= age);
        while self.later.front().is_some_and(|(time, _)| is_due(*time)) {
            let due = self.later.pop_front();
            for row in due.into_iter().flat_map(|(_, rows)| rows) {
                self.array.apply(row);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::array::{NodeSettings, Settings};

    fn mk_array() -> Array {
        Array::new(Settings::default(), 1)
    }

    fn register(array: &mut Array, stale: &mut StaleState, node: &str) {
        let done = array.set_node(node, NodeSettings::default());
        stale.note(&done.rows);
    }

    #[tokio::test(start_paused = true)]
    async fn frozen_state_is_dropped_after_its_age_without_readers() {
        let mut array = mk_array();
        let freeze = |age| StaleList {
            since: Duration::ZERO,
            age,
        };
        let mut still = StaleState::of(&array, freeze(None));
        let mut behind = StaleState::of(&array, freeze(Some(Duration::from_secs(3))));
        for second in 0..100 {
            let node = format!("node-{second}");
            register(&mut array, &mut still, &node);
            let change = array.set_node(
                &node,
                NodeSettings {
                    limit: Some(second),
                    ..NodeSettings::default()
                },
            );
            behind.note(&change.rows);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!((still.later.len(), behind.later.len()), (0, 3));
        assert_eq!(still.now().nodes().count(), 0);
        assert_eq!(
            behind.now().nodes().count(),
            98,
            "those of at least three seconds ago"
        );
    }
}
