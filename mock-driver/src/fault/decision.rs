//! The faults of one call.

use tokio::time;

use super::Hang;
use super::reservation::Reservation;
use super::rule_state::ActiveFault;

/// The faults of one call.
#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// The first matching rule. One of phase `after` has not been applied yet: see [`Faults::apply`](super::Faults::apply).
    pub(crate) rule: Option<ActiveFault>,
    /// The backend fault that refuses the call, else the one with the longest delay.
    pub(crate) backend: Option<ActiveFault>,
    /// The reserved capacity, to be dropped after the array has allocated it or the call has failed.
    pub(crate) reservation: Option<Reservation>,
}

// === impl Decision ===

impl Decision {
    pub(super) fn is_refused(&self) -> bool {
        let refused = self.backend.as_ref().and_then(ActiveFault::status);
        refused.is_some()
    }

    /// Adds a backend fault: a refusal replaces a delay, and a longer delay a shorter one.
    pub(super) fn add(&mut self, active: ActiveFault) {
        let is_worse = |other: &ActiveFault| active.status().is_some() || active.delay > other.delay;
        if self.backend.as_ref().is_none_or(is_worse) {
            self.backend = Some(active);
        }
    }
}

// === impl ActiveFault ===

impl ActiveFault {
    /// Delays or hangs the call.
    pub(crate) async fn pause(&mut self) {
        if !self.delay.is_zero() {
            time::sleep(self.delay).await;
        }
        match self.rule().action.hang {
            Some(Hang::ClientCancel) => std::future::pending().await,
            Some(Hang::Release) => self.released().await,
            Some(Hang::For(time)) => time::sleep(time).await,
            None => {}
        }
    }
}
