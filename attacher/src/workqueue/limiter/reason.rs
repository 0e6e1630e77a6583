//! Whether other calls may be the reason of a refusal.

use std::time::Duration;

use super::{CallId, JUST_ENDED, Limiter};

// === impl Limiter ===

impl Limiter {
    /// Whether other calls, not an earlier one of the same sync, may be the reason of the refusal of this one: one was in flight meanwhile or, unless the code is
    /// final, has just ended.
    pub(in super::super) fn is_contended(&self, id: CallId, is_final: bool) -> bool {
        let Some(call) = self.calls.get(&id) else {
            return false;
        };
        let mut others = self
            .calls
            .iter()
            .filter(|(other, call)| **other != id && call.sent);
        let lock = match self.window {
            Some(_) if !is_final => (2 * self.spacing.current).clamp(JUST_ENDED, self.longest_lock),
            Some(_) | None if is_final => Duration::ZERO,
            Some(_) | None => JUST_ENDED,
        };
        let ended = self.last_end.filter(|_| self.last_ended != id);
        others.next().is_some() || ended.is_some_and(|end| end + lock >= call.began)
    }

    /// Whether no other call was in flight meanwhile: if other calls are the reason of its refusal, then by their rate.
    pub(in super::super) fn was_idle(&self, id: CallId) -> bool {
        let began = self.calls.get(&id).map(|call| call.began);
        let mut others = self
            .calls
            .iter()
            .filter(|(other, call)| **other != id && call.sent);
        others.next().is_none() && self.last_end < began
    }

    /// Whether the limit explains its refusal: an interval that was accepted before is not refused.
    pub(in super::super) fn explains(&self, id: CallId) -> bool {
        let Some(((call, last), window)) = self.calls.get(&id).zip(self.last_begin).zip(self.window) else {
            return true;
        };
        let gap = call.began.saturating_duration_since(last);
        self.calls.len() > window || self.spacing.explains(gap)
    }

    /// Whether no call was in flight besides this one, and none succeeded shortly before or meanwhile.
    pub(in super::super) fn is_alone(&self, id: CallId) -> bool {
        !self.is_contended(id, false)
    }

    /// Whether a call succeeded while this one was in flight.
    pub(in super::super) fn succeeded_during(&self, id: CallId) -> bool {
        let began = self.calls.get(&id).map(|call| call.began);
        self.last_end >= began && began.is_some()
    }
}
