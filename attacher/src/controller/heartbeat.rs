//! Liveness of the control loop.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time of the control loop's last iteration. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<Mutex<Option<Instant>>>);

/// The longest iteration of a healthy loop: it waits for events only, and at most for [`Heartbeat::PERIOD`].
const TIMEOUT: Duration = Duration::from_secs(30);

// === impl Heartbeat ===

impl Heartbeat {
    /// The interval of beats without events.
    pub const PERIOD: Duration = Duration::from_secs(5);

    /// The loop began an iteration.
    pub fn beat(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// The loop ended, so no beat is expected.
    pub fn stop(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// For how long the loop has been stuck, if it is. A loop that has not started is not stuck.
    pub(crate) fn stalled(&self, now: Instant) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = now.saturating_duration_since(last?);
        (since > TIMEOUT).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reports_a_stall_if_beats_are_missing_for_the_timeout() {
        let heartbeat = Heartbeat::default();
        assert_eq!(heartbeat.stalled(Instant::now() + 2 * TIMEOUT), None);
        let begin = Instant::now();
        heartbeat.beat(begin);
        assert_eq!(heartbeat.stalled(begin + TIMEOUT), None);
        assert_eq!(heartbeat.stalled(begin + 2 * TIMEOUT), Some(2 * TIMEOUT));
        heartbeat.beat(begin + 2 * TIMEOUT);
        assert_eq!(heartbeat.stalled(begin + 2 * TIMEOUT), None);
        heartbeat.stop();
        assert_eq!(heartbeat.stalled(begin + 9 * TIMEOUT), None);
    }
}
