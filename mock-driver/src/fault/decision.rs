use std::sync::PoisonError;

use tokio::time;

use super::call_info::{CallInfo, reserved_by};
use super::reservation::Reservation;
use super::rule::{Phase, RuleKind};
use super::rule_state::ActiveFault;
use super::{Faults, Hang};

#[derive(Debug, Default)]
pub(crate) struct Decision {
    /// The first matching rule. One of phase `after` has not been applied yet: see [`Faults::apply`].
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

// === impl Faults ===

impl Faults {
    /// Selects and counts the faults of a call: the first matching rule and, of the backend faults, the first that refuses the
    /// call, else the one with the longest delay. A call that no backend fault refuses reserves capacity.
    pub(crate) fn decide(&self, call: &dyn CallInfo) -> Decision {
        // Locked until the rule counts the call: a rule that is removed meanwhile releases it.
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let mut decision = Decision::default();
        let now = self.began.elapsed();
        // Locked until the rules have fired and the reservation exists, so that concurrent calls are decided one after
        // another. A call drops its reservation only after the array has changed, so limits always count it.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut reserved = crate::lock(&self.reservations);
        for rule_state in rules.iter().filter(|rule_state| rule_state.is_enabled()) {
            let is_asked = match rule_state.rule.kind {
                RuleKind::Rule => decision.rule.is_none(),
                RuleKind::BackendFault => !decision.is_refused(),
            };
            let matches = &rule_state.rule.matches;
            let is_of_kind = matches.io.is_some() == call.io().is_some();
            if !is_asked || !is_of_kind || rule_state.rule.overlay.is_some() || !matches.covers(call, &state)
            {
                continue;
            }
            let Some(mut active) = rule_state.take(call, self.seed, &reserved, now) else {
                continue;
            };
            if active.rule().phase != Phase::After {
                active.apply(&mut state, &self.injected);
            }
            match rule_state.rule.kind {
                RuleKind::Rule => decision.rule = Some(active),
                RuleKind::BackendFault => decision.add(active),
            }
        }
        // Also without a limit: one that is set while the call runs counts it.
        if !decision.is_refused() {
            decision.reservation = reserved_by(call)
                .map(|(key, bytes)| Reservation::new(key, bytes, &self.reservations, &mut reserved));
        }
        decision
    }

    /// Applies a fired rule of phase `after`, which sets the state. `None`, and the firing is reverted, if another call has left
    /// the rule's state meanwhile.
    pub(crate) fn apply(&self, mut active: ActiveFault) -> Option<ActiveFault> {
        if active.is_applied {
            return Some(active);
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let wanted = active.rule().matches.r#while.state.as_ref();
        if active.rule().action.set_state.is_some() && wanted.is_some_and(|wanted| wanted.0 != *state) {
            return None;
        }
        active.apply(&mut state, &self.injected);
        Some(active)
    }
}

// === impl ActiveFault ===

impl ActiveFault {
    /// Delays or hangs the call, at most until its rule is released.
    pub(crate) async fn pause(&mut self) {
        let (delay, hang) = (self.delay, self.rule().action.hang);
        let wait = async {
            if !delay.is_zero() {
                time::sleep(delay).await;
            }
            match hang {
                Some(Hang::ClientCancel | Hang::Release) => std::future::pending().await,
                Some(Hang::For(time)) => time::sleep(time).await,
                None => {}
            }
        };
        tokio::select! {
            biased;
            () = wait => {}
            () = self.released() => {}
        }
    }
}
