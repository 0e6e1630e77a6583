//! The keys whose refusals taught a limit. They may fail for reasons of their own, as volumes of full nodes do: then they are refused
//! again, while others are accepted.

use std::collections::BTreeMap;
use std::time::Instant;

use super::{Call, CallId, Limiter, PATIENCE};

/// How many keys are kept.
const KEPT: usize = 64;

/// See the module.
#[derive(Debug)]
pub(super) struct Suspects {
    /// With whether the key was refused again.
    keys: BTreeMap<CallId, bool>,
    /// Whether one of them was accepted, which proves the limit.
    is_proven: bool,
}

// === impl Suspects ===

impl Suspects {
    pub(super) fn new(is_proven: bool) -> Self {
        Self {
            keys: BTreeMap::new(),
            is_proven,
        }
    }

    pub(super) fn is_proven(&self) -> bool {
        self.is_proven
    }

    /// Returns whether the key is one, which is refused again.
    pub(super) fn refused_again(&mut self, id: CallId) -> bool {
        let key = self.keys.get_mut(&id);
        key.map(|again| *again = true).is_some()
    }

    pub(super) fn taught(&mut self, id: CallId) {
        if !self.is_proven {
            self.keys.entry(id).or_default();
            // A key gets another id when it waits out a backoff, so the oldest ones may not come back.
            if self.keys.len() > KEPT {
                self.keys.pop_first();
            }
        }
    }

    pub(super) fn accepted(&mut self, id: CallId) {
        if self.keys.contains_key(&id) {
            *self = Self::new(true);
        }
    }

    /// Whether all keep failing.
    pub(super) fn keep_failing(&self) -> bool {
        !self.keys.is_empty() && self.keys.values().all(|again| *again)
    }
}

// === impl Limiter ===

impl Limiter {
    /// The end of a call that failed, but not because of this limit.
    pub(in super::super) fn failed(&mut self, id: CallId) {
        if self.suspects.refused_again(id) {
            self.refute();
        }
        self.forget(id);
    }

    /// Whether a refusal of a call that began then teaches nothing, as the limit is not proven: the key was refused before, or the
    /// rush is over that taught the limit. An interval is searched with refusals in a row until one is accepted.
    pub(super) fn teaches_nothing(&mut self, id: CallId, repeated: bool, began: Instant) -> bool {
        let is_again = self.suspects.refused_again(id) || repeated;
        if self.suspects.is_proven() {
            return false;
        }
        let is_late = self.window().is_some_and(|window| window > 1) && self.changed < Some(began);
        if is_again {
            self.refute();
        } else {
            self.suspects.taught(id);
        }
        let is_known = match self.window() {
            None => true,
            Some(1) => self.interval.accepted > 0,
            // Short calls are in flight one at a time, whatever the window.
            Some(_) => self.took >= PATIENCE,
        };
        is_known && (is_again || is_late)
    }

    /// Drops a limit that was taught by keys only that keep failing, while the driver accepts another one.
    pub(super) fn refute(&mut self) {
        let accepted = |call: &Call| call.is_accepted && self.changed < Some(call.began);
        if let Some(window) = self.window()
            && self.suspects.keep_failing()
            && (self.changed < self.last_began || self.calls.values().any(accepted))
        {
            let suspects = std::mem::replace(&mut self.suspects, Suspects::new(false));
            self.start_slowly(window.max(self.calls.len()) + 1);
            self.suspects = suspects;
        }
    }
}
