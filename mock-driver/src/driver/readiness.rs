//! What Probe answers.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// What Probe answers, which may be changed while the driver runs.
#[derive(Debug)]
pub struct Readiness {
    from: Instant,
    state: AtomicU8,
}

/// What a driver says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ready {
    /// All is well.
    Yes,
    /// Not yet: the caller is to ask again.
    NotYet,
    /// Something it needs is missing.
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

    /// What holds at this moment.
    pub fn now(&self) -> Ready {
        match self.state.load(Ordering::Relaxed) {
            1 => Ready::NotYet,
            2 => Ready::Broken,
            _ if Instant::now() < self.from => Ready::NotYet,
            _ => Ready::Yes,
        }
    }

    /// Says something else from now on. `Yes` still waits for the time after the start.
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
