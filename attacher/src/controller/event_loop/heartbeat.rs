//! Whether the dispatcher moves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// When the dispatcher last went round. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Heartbeat(Arc<Mutex<Option<Instant>>>);

/// How long a dispatcher may be at one thing. It waits for nothing but events, and no longer than a
/// period.
const PATIENCE: Duration = Duration::from_secs(30);

// === impl Heartbeat ===

impl Heartbeat {
    /// How often it beats when nothing else happens.
    pub const PERIOD: Duration = Duration::from_secs(5);

    /// The dispatcher went round.
    pub fn beat(&self, now: Instant) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
    }

    /// The dispatcher has ended, and is not waited for.
    pub fn stop(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// For how long it has not moved, if that is too long. One that has not started has nothing to do
    /// yet.
    pub fn stalled(&self, now: Instant) -> Option<Duration> {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = now.saturating_duration_since(last?);
        (since > PATIENCE).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_dispatcher_that_does_not_come_round_has_stalled() {
        let pulse = Heartbeat::default();
        assert_eq!(pulse.stalled(Instant::now() + 2 * PATIENCE), None);
        let begin = Instant::now();
        pulse.beat(begin);
        assert_eq!(pulse.stalled(begin + PATIENCE), None);
        assert_eq!(pulse.stalled(begin + 2 * PATIENCE), Some(2 * PATIENCE));
        pulse.beat(begin + 2 * PATIENCE);
        assert_eq!(pulse.stalled(begin + 2 * PATIENCE), None);
        pulse.stop();
        assert_eq!(pulse.stalled(begin + 9 * PATIENCE), None);
    }
}
