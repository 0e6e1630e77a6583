//! The response of Probe.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// The response of Probe, which can change at run time.
#[derive(Debug)]
pub struct Readiness {
    from: Instant,
    state: AtomicU8,
}

/// Readiness of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// Ready.
    Yes,
    /// Not ready yet.
    NotYet,
    /// A dependency is missing: FAILED_PRECONDITION.
    Broken,
}

// === impl Readiness ===

impl Readiness {
    /// Ready after a time.
    pub fn after(time: Duration) -> Self {
        Self {
            from: Instant::now() + time,
            state: AtomicU8::new(0),
        }
    }

    /// The present readiness.
    pub fn now(&self) -> Ready {
        match self.state.load(Ordering::Relaxed) {
            1 => Ready::NotYet,
            2 => Ready::Broken,
            _ if Instant::now() < self.from => Ready::NotYet,
            _ => Ready::Yes,
        }
    }

    /// Sets the readiness. `Yes` still waits for the time after the start.
    pub fn set(&self, ready: Ready) {
        let state = match ready {
            Ready::Yes => 0,
            Ready::NotYet => 1,
            Ready::Broken => 2,
        };
        self.state.store(state, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ready_comes_with_time_and_goes_on_demand() {
        let readiness = Readiness::after(Duration::from_secs(3));
        assert_eq!(readiness.now(), Ready::NotYet);
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(readiness.now(), Ready::Yes);
        readiness.set(Ready::Broken);
        assert_eq!(readiness.now(), Ready::Broken);
        readiness.set(Ready::Yes);
        assert_eq!(readiness.now(), Ready::Yes);
    }
}
