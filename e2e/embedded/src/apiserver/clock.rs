//! The server's clock follows tokio's clock, so that it pauses and advances with the runtime's simulated
//! time.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall-clock time that follows tokio's clock from a given start.
#[derive(Clone, Debug)]
pub struct Clock {
    started: Instant,
    /// Wall-clock time at `started`, including later jumps.
    base: Arc<Mutex<Timestamp>>,
}

// === impl Clock ===

impl Clock {
    /// A clock that now shows `base`.
    pub fn starting_at(base: Timestamp) -> Self {
        Self {
            started: Instant::now(),
            base: Arc::new(Mutex::new(base)),
        }
    }

    /// A clock that shows the machine's time.
    pub fn system() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        let base = *self.base.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = SignedDuration::try_from(self.started.elapsed()).unwrap_or(SignedDuration::ZERO);
        base.checked_add(elapsed).unwrap_or(base)
    }

    /// Moves the clock and all its clones: wall clocks can jump, also backwards.
    pub fn jump(&self, by: SignedDuration) {
        let mut base = self.base.lock().unwrap_or_else(PoisonError::into_inner);
        *base = base.checked_add(by).unwrap_or(*base);
    }

    /// The time now as `metav1.Time`.
    pub(crate) fn now_text(&self) -> String {
        format_time(self.now())
    }
}

/// The form of `metav1.Time`: whole seconds.
pub(crate) fn format_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The form of `metav1.MicroTime`.
pub(crate) fn format_micro_time(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}
