//! Faults on demand: an ordered list of rules, of which the first that matches a call decides what goes wrong
//! with it, and backend faults of the array itself ([`backend_fault`]).
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
//! # The volume is attached, but the caller gets no answer.
//! - id: lost-answer
//!   match: {method: ControllerPublishVolume, volume: "vol-*"}
//!   phase: after
//!   action: {hang: client-cancel}
//! # One detach in five takes longer, mostly a little, sometimes a lot.
//! - id: slow
//!   match: {method: ControllerUnpublishVolume, probability: 0.2}
//!   action: {delay: {exponential: 2s, max: 20s}}
//! ```
//!
//! | field | meaning |
//! |---|---|
//! | `id` | the rule's name in the journal |
//! | `enabled` | `false` for a rule that is enabled later |
//! | `match` | all that is there must fit; what is absent matches every call |
//! | `match.method` | a name (`Probe`), a pattern (`Node*`), a path (`/csi.v1.Node/NodeGetInfo`, `/vendor.v1.Copy/Start`) |
//! | `match.volume`, `.node`, `.name` | patterns (`*`, `?`) for ids and for the name of what is to be created |
//! | `match.secrets`, `.parameters` | entries the request must have, with these very values; `parameters` also looks into `volume_context` |
//! | `match.bytes-above` | the call asks for more bytes than this |
//! | `match.call`, `.every` | which of the calls that come to the rule: `call: 3` the third, `every: 2` each second, both together each second from the third on |
//! | `match.probability`, `.seed` | how likely it fires, from 0 to 1; with a seed of its own or the driver's |
//! | `match.while` | `volume`: `attached`, `attached-here`, `attached-elsewhere`, `detached` or `absent`; `state`: the state `set-state` left, at first `start` |
//! | `phase` | `before` (the default) or `after` the effect; `background`: the caller is answered (DEADLINE_EXCEEDED unless `code` says otherwise), then comes the effect |
//! | `action` | first `delay`, then `hang`, then one end |
//! | `action.delay` | `250ms`, `{uniform: [1s, 2s]}` or `{exponential: 2s, max: 20s}` |
//! | `action.hang` | a time, `client-cancel`, or `release` (until the rule is released) |
//! | `action.code`, `.message` | end: the call fails |
//! | `action.edit` | end: fields of the reply are changed, such as `{publish_context.device: /dev/sdz}`; null takes one away |
//! | `action.drop-connection` | end: the caller's connection breaks |
//! | `action.socket-away` | end: all connections break and the socket is gone for a time |
//! | `action.exit` | end: the driver ends with a status, or with `kill` as if killed |
//! | `action.after-messages` | of a streamed answer so many messages come first; one with fewer is broken off in place of its end |
//! | `action.set-state` | the state of the rules from now on |
//! | `times` | how often the rule fires before it is passed over; absent for every time |
//!
//! A file is a list of rules, or a mapping with such a list as `rules` and one of `troubles`:
//! `{id: old-list, trouble: frozen-list, age: 30s}`.
//!
//! Before the effect, an end takes the effect's place; a delay or a hang only puts it off. After the effect, a
//! rule acts only if the call has succeeded: one that fails by itself counts for nothing, sets no state, and the
//! next call is the rule's in its place. The volume is busy as long as a rule holds its call up.
//!
//! The list can be exchanged while calls run: a call keeps the rule it met, and a rule that comes back unchanged
//! keeps its count, so that adding one rule to a file does not re-arm the others. Rules set at run time come
//! before those of the file, and those before a scenario's.

use std::sync::{Arc, PoisonError, RwLock};

use serde::Serialize;

pub use self::backend_fault::{ArrayUsage, BackendFault, BackendFaultKind, Injection, Loses, Scope};
pub use self::backend_faults::{BackendFaultReport, BackendFaults, FaultDecision};
pub use self::file::{FaultFile, LoadError};
pub use self::overlay::{DeviceOverlay, DiskOverlay, Freeze, ListOverlay, Loss};
pub use self::parse::{Part, RuleError};
pub use self::random::{DelayDistribution, Seed};
pub use self::reservation::{Reservation, Reservations};
pub use self::rule::{
    Action, CallInfo, CallNumbers, End, Exit, Hang, LocationMatch, Match, Methods, Phase, Rule,
    VolumeLocation,
};
use self::rule_state::RuleState;
pub use self::rule_state::{ActiveFault, Report};
pub use self::script::Script;

pub mod backend_fault;
mod backend_faults;
pub mod duration;
mod edit;
mod file;
mod overlay;
mod parse;
mod random;
mod reservation;
mod rule;
mod rule_state;
pub mod scenario;
mod script;

/// The state the rules are in before one sets another.
const FIRST_STATE: &str = "start";

/// The rules in force: the one handle for the fault file, the calls and the admin API.
#[derive(Debug)]
pub struct Faults {
    seed: Seed,
    armed: RwLock<Arc<[Arc<RuleState>]>>,
    state: RwLock<Arc<str>>,
    backend_faults: BackendFaults,
}

/// Where a rule comes from, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Set while the driver runs.
    Admin,
    /// The fault file.
    File,
    /// A built-in scenario.
    Scenario,
}

/// An id is taken by a rule or backend fault of another origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("id \"{id}\" belongs to a {kind} of the {owner:?} already: take another, or remove that one")]
pub struct IdConflict {
    id: String,
    kind: &'static str,
    owner: Origin,
}

// === impl Faults ===

impl Default for Faults {
    fn default() -> Self {
        Self::new(Seed(0))
    }
}

impl Faults {
    /// No rules. All chance comes from the seed.
    pub fn new(seed: Seed) -> Self {
        Self {
            seed,
            armed: RwLock::default(),
            state: RwLock::new(FIRST_STATE.into()),
            backend_faults: BackendFaults::default(),
        }
    }

    /// The seed of all chance.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// The backend faults of the array.
    pub fn backend_faults(&self) -> &BackendFaults {
        &self.backend_faults
    }

    /// Puts a script into force in place of all that came from the same origin.
    ///
    /// # Errors
    /// As for [`Faults::replace`].
    pub fn load(&self, origin: Origin, script: Script) -> Result<(), IdConflict> {
        // So that nothing of it comes into force if anything is refused.
        self.backend_faults.check(origin, &script.troubles)?;
        self.replace(origin, script.rules)?;
        self.backend_faults.replace(origin, script.troubles)
    }

    /// Puts a script into force at run time beside what is there, as [`Faults::put`] and [`BackendFaults::put`] do it
    /// with each of its parts. Rules come into force all at once.
    ///
    /// # Errors
    /// If an id belongs to a rule or backend fault of another origin; nothing has changed then.
    pub fn put_all(&self, script: Script) -> Result<(), IdConflict> {
        self.backend_faults.check(Origin::Admin, &script.troubles)?;
        check(&self.rules(), Origin::Admin, &script.rules)?;
        // Before the rules, which may end the process. The last one put is the first one asked.
        for trouble in script.troubles.into_iter().rev() {
            self.backend_faults.put(trouble)?;
        }
        self.change(|old| {
            check(old, Origin::Admin, &script.rules)?;
            let mut new = old.to_vec();
            for rule in script.rules {
                put_into(&mut new, rule);
            }
            Ok(new)
        })
    }

    /// Puts other rules into force in place of all those of the same origin.
    ///
    /// # Errors
    /// If an id belongs to a rule of another origin; nothing has changed then.
    pub fn replace(&self, origin: Origin, rules: Vec<Rule>) -> Result<(), IdConflict> {
        self.change(|old| {
            check(old, origin, &rules)?;
            let same = |rule: &Rule| {
                old.iter()
                    .find(|armed| armed.origin == origin && armed.rule == *rule)
                    .cloned()
            };
            let new = rules
                .into_iter()
                .map(|rule| same(&rule).unwrap_or_else(|| RuleState::new(rule, origin)));
            let new: Vec<_> = new.collect();
            let others = old.iter().filter(|armed| armed.origin != origin).cloned();
            Ok(others.chain(new).collect())
        })
    }

    /// Puts a rule into force at run time: in the place of the one with its id, or before all others that
    /// were not set at run time.
    ///
    /// # Errors
    /// If its id belongs to a rule of another origin, which would take it away with its next reload.
    pub fn put(&self, rule: Rule) -> Result<(), IdConflict> {
        self.change(|old| {
            check(old, Origin::Admin, std::slice::from_ref(&rule))?;
            let mut new = old.to_vec();
            put_into(&mut new, rule);
            Ok(new)
        })
    }

    /// Takes a rule out of force, and says whether there was one.
    pub fn remove(&self, id: &str) -> bool {
        let mut found = false;
        let outcome: Result<(), IdConflict> = self.change(|old| {
            let (gone, rest): (Vec<_>, Vec<_>) = old.iter().cloned().partition(|armed| armed.rule.id == id);
            found = !gone.is_empty();
            Ok(rest)
        });
        outcome.expect("removing a rule must not fail");
        found
    }

    /// Switches a rule on or off, and says whether there is one.
    pub fn set_enabled(&self, id: &str, enabled: bool) -> bool {
        let armed = self.find(id);
        if let Some(armed) = &armed {
            armed.set_enabled(enabled);
        }
        armed.is_some()
    }

    /// Lets the calls go that hang until they are released: a rule's, or all. Says how many calls the
    /// rules had in their hands; none if there is no such rule.
    pub fn release(&self, id: Option<&str>) -> Option<u64> {
        match id {
            Some(id) => self.find(id).map(|armed| armed.release()),
            None => Some(self.rules().iter().map(|armed| armed.release()).sum()),
        }
    }

    /// Sets all counts to zero, each rule on or off as it was written, and the state to the first one.
    pub fn reset(&self) {
        for armed in self.rules().iter() {
            armed.reset();
        }
        self.set_state(FIRST_STATE);
    }

    /// The state the rules are in.
    pub fn state(&self) -> Arc<str> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the rules into a state.
    pub fn set_state(&self, state: &str) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state.into();
    }

    /// Every rule, in the order in which they are asked.
    pub fn reports(&self) -> Vec<Report> {
        self.rules().iter().map(|armed| armed.report()).collect()
    }

    /// How many rules there are, used-up ones included.
    pub fn len(&self) -> usize {
        self.rules().len()
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first rule that matches, and counts it. A rule of phase `after` has not acted yet: see [`Faults::act`].
    pub fn fire(&self, occasion: &dyn CallInfo) -> Option<ActiveFault> {
        let rules = self.rules();
        if rules.is_empty() {
            return None;
        }
        // Held until the rule has acted: each call is one step, and each rule is asked once about it.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut fired = rules.iter().find_map(|armed| {
            let is_ctl = armed.is_enabled() && armed.rule.matches.covers(occasion, &state);
            is_ctl.then(|| armed.take(occasion, self.seed)).flatten()
        })?;
        if fired.rule().phase != Phase::After {
            fired.acts(&mut state);
        }
        Some(fired)
    }

    /// Has a rule of phase `after` act that fired: it sets the state. None if it was for a state that another call
    /// has ended meanwhile; the firing is taken back then.
    pub fn act(&self, mut fired: ActiveFault) -> Option<ActiveFault> {
        if fired.has_acted() {
            return Some(fired);
        }
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let wanted = fired.rule().matches.state.as_deref();
        if fired.rule().action.set_state.is_some() && wanted.is_some_and(|wanted| wanted != &**state) {
            return None;
        }
        fired.acts(&mut state);
        Some(fired)
    }

    fn rules(&self) -> Arc<[Arc<RuleState>]> {
        self.armed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, id: &str) -> Option<Arc<RuleState>> {
        self.rules().iter().find(|armed| armed.rule.id == id).cloned()
    }

    /// Exchanges the list, keeps it in order, and lets go what the rules that left had in their hands.
    fn change<E>(
        &self,
        change: impl FnOnce(&[Arc<RuleState>]) -> Result<Vec<Arc<RuleState>>, E>,
    ) -> Result<(), E> {
        let mut armed = self.armed.write().unwrap_or_else(PoisonError::into_inner);
        let mut new = change(&armed)?;
        new.sort_by_key(|armed| armed.origin);
        for gone in armed
            .iter()
            .filter(|old| !new.iter().any(|new| Arc::ptr_eq(old, new)))
        {
            gone.release();
        }
        *armed = new.into();
        Ok(())
    }
}

fn put_into(rules: &mut Vec<Arc<RuleState>>, rule: Rule) {
    let known = rules.iter().position(|armed| armed.rule.id == rule.id);
    let armed = RuleState::new(rule, Origin::Admin);
    match known {
        Some(place) => rules[place] = armed,
        None => rules.push(armed),
    }
}

/// Checks that no id of rules of an origin belongs to a rule of another one.
fn check(there: &[Arc<RuleState>], origin: Origin, rules: &[Rule]) -> Result<(), IdConflict> {
    let there = there.iter().map(|armed| (&*armed.rule.id, armed.origin));
    none_taken("rule", there, origin, |id| rules.iter().any(|rule| rule.id == id))
}

/// Checks that of what is there, by id and origin, nothing of another origin has an id that is wanted.
fn none_taken<'a>(
    kind: &'static str,
    mut there: impl Iterator<Item = (&'a str, Origin)>,
    origin: Origin,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<(), IdConflict> {
    match there.find(|(id, owner)| *owner != origin && is_wanted(id)) {
        None => Ok(()),
        Some((id, owner)) => Err(IdConflict {
            id: id.to_owned(),
            kind,
            owner,
        }),
    }
}

#[cfg(test)]
mod tests;
