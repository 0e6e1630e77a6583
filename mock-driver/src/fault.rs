//! Faults on demand: an ordered list of rules, of which the first that matches a call decides what
//! goes wrong with it.
//!
//! Rules are written in YAML:
//!
//! ```yaml
//! # Three times there is no room on node-0, then there is.
//! - id: no-room
//!   match: {method: ControllerPublishVolume, node: node-0}
//!   phase: before
//!   action: {code: RESOURCE_EXHAUSTED, message: node-0 is full}
//!   times: 3
//! # The volume is attached, but whoever asked never hears of it.
//! - id: lost-answer
//!   match: {method: ControllerPublishVolume, volume: "vol-*"}
//!   phase: after
//!   action: {hang: client-cancel}
//! # Detaching takes two seconds longer.
//! - id: slow
//!   match: {method: ControllerUnpublishVolume}
//!   action: {delay: 2s}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `id` | the rule's name in the journal |
//! | `match` | `method`; patterns (`*`, `?`) for `volume` and `node` ids and for the `name` of a volume to be created; what is absent matches every call |
//! | `phase` | `before` (the default) or `after` the effect |
//! | `action` | first `delay` (`250ms`, `2s`), then `hang` (a time, or `client-cancel`), then `code` with `message`; at least one of delay, hang and code |
//! | `times` | how often the rule fires before it is passed over; absent for every time |
//!
//! Before the effect, a code or a hang until the client leaves takes the effect's place; a delay or
//! a hang for a time only puts it off. After the effect, a rule acts only if the call has succeeded.
//! The volume is busy as long as a rule holds its call up.
//!
//! The list can be exchanged while calls run: a call keeps the rule it met, and a rule that comes
//! back unchanged keeps its count, so that adding one rule to a file does not re-arm the others.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

pub use self::file::{FaultFile, LoadError};
pub use self::rule::{Action, Hang, Match, Phase, Rule, RuleError};
use crate::method::Method;

mod file;
mod rule;

/// The rules in force.
#[derive(Debug, Default)]
pub struct Faults {
    armed: RwLock<Arc<[Arc<Armed>]>>,
}

/// A call, as far as rules look at it. Empty text stands for a field the call has not.
#[derive(Clone, Copy, Debug)]
pub struct Occasion<'a> {
    /// The RPC.
    pub method: Method,
    /// The volume's id.
    pub volume: &'a str,
    /// The node's id.
    pub node: &'a str,
    /// The name of a volume to be created.
    pub name: &'a str,
}

/// A rule that fired for a call.
#[derive(Debug)]
pub struct Fired(Arc<Armed>);

#[derive(Debug)]
struct Armed {
    rule: Rule,
    fired: AtomicU64,
}

// === impl Faults ===

impl Faults {
    /// Puts other rules into force.
    pub fn replace(&self, rules: Vec<Rule>) {
        let mut armed = self.armed.write().unwrap_or_else(PoisonError::into_inner);
        let old = armed.clone();
        *armed = rules
            .into_iter()
            .map(|rule| match old.iter().find(|armed| armed.rule == rule) {
                Some(same) => same.clone(),
                None => Arc::new(Armed {
                    rule,
                    fired: AtomicU64::new(0),
                }),
            })
            .collect();
    }

    /// How many rules are in force, used-up ones included.
    pub fn len(&self) -> usize {
        self.rules().len()
    }

    /// Whether no rule is in force.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first rule that matches, and counts it.
    pub fn fire(&self, occasion: &Occasion<'_>) -> Option<Fired> {
        self.rules()
            .iter()
            .find(|armed| armed.rule.matches.covers(occasion) && armed.take())
            .map(|armed| Fired(armed.clone()))
    }

    fn rules(&self) -> Arc<[Arc<Armed>]> {
        self.armed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

// === impl Fired ===

impl Fired {
    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.0.rule
    }

    /// Takes the firing back: the call never came to the point where the rule would have acted.
    pub fn give_back(self) {
        self.0.fired.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Armed ===

impl Armed {
    /// Counts one firing, unless the rule is used up.
    fn take(&self) -> bool {
        let limit = self.rule.times.unwrap_or(u64::MAX);
        self.fired
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |fired| {
                (fired < limit).then_some(fired + 1)
            })
            .is_ok()
    }
}

#[cfg(test)]
mod tests;
