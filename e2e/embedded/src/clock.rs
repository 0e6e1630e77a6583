//! Wall-clock time that follows tokio's clock, so that a paused runtime also pauses timestamps.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// A wall clock that started at a chosen time and advances with [`tokio::time`].
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    epoch: Timestamp,
    started: Instant,
}

// === impl Clock ===

impl Clock {
    /// A clock that shows `epoch` now.
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self {
            epoch,
            started: Instant::now(),
        }
    }

    /// A clock that shows the machine's time.
    pub fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.started.elapsed()).unwrap_or(SignedDuration::MAX);
        self.epoch.saturating_add(elapsed).unwrap_or(Timestamp::MAX)
    }
}
