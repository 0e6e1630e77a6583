//! Fault injection: an ordered list of rules. The first rule that matches a call applies to it. Backend faults are
//! rules about the array's state; a call gets at most one of them (`condition`), and they change what the array reports
//! (`overlay`).
//!
//! See `docs/faults.md` for the syntax.
//!
//! In phase `before`, an action with an end replaces the operation; a delay or a hang postpones it. In phase `after`, a
//! rule fires only if the call succeeded; otherwise the firing is returned to the next call. The call's volume stays
//! locked while a rule delays it.
//!
//! The list can be exchanged while calls run: a call keeps the rule it met, and a rule that comes back unchanged
//! keeps its count, so that adding one rule to a file does not re-arm the others. Rules set at run time come
//! before those of the file, and those before a scenario's.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use self::call_info::reservation_key;
pub use self::call_info::{ArrayUsage, CallInfo, VolumeLocation};
pub use self::decision::Decision;
pub use self::file::{FaultFile, LoadError};
pub(crate) use self::overlay::Freeze;
use self::overlay::Overlay;
pub use self::overlay::{DeviceOverlay, DiskOverlay, Loses, Loss};
pub use self::parse::RuleError;
pub use self::random::{DelayDistribution, Seed};
pub(crate) use self::reservation::Reservation;
pub use self::reservation::Reservations;
pub(crate) use self::rule::Hang;
pub use self::rule::{Action, End, Exit, Match, Methods, Phase, Rule, RuleKind};
use self::rule_state::RuleState;
pub use self::rule_state::{ActiveFault, Origin, Report};
pub use self::script::Script;

mod call_info;
mod condition;
mod decision;
pub mod duration;
mod edit;
mod file;
mod in_force;
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
    began: Instant,
    /// What calls in progress are about to take of the array.
    reservations: Arc<Mutex<Reservations>>,
    /// How the listing is frozen; shared with the store, which keeps the old state then.
    frozen: Arc<RwLock<Option<Freeze>>>,
    /// What the array is to lose at its end.
    loss: watch::Sender<Option<Loss>>,
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
            began: Instant::now(),
            reservations: Arc::default(),
            frozen: Arc::default(),
            loss: watch::Sender::default(),
        }
    }

    /// The seed of all chance.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Puts a script into force in place of everything of the same origin.
    ///
    /// # Errors
    /// If an id belongs to another origin; nothing has changed then.
    pub fn load(&self, origin: Origin, script: Script) -> Result<(), IdConflict> {
        self.replace_parts(origin, &[RuleKind::Rule, RuleKind::BackendFault], script.rules)
    }

    /// Puts other rules into force in place of all those of the same origin; its backend faults stay.
    ///
    /// # Errors
    /// As for [`Faults::load`].
    pub fn replace(&self, origin: Origin, rules: Vec<Rule>) -> Result<(), IdConflict> {
        self.replace_parts(origin, &[RuleKind::Rule], rules)
    }

    fn replace_parts(&self, origin: Origin, parts: &[RuleKind], rules: Vec<Rule>) -> Result<(), IdConflict> {
        self.change(|old, now| {
            check(old, origin, &rules)?;
            let same = |rule: &Rule| {
                old.iter()
                    .find(|armed| armed.origin == origin && armed.rule == *rule)
                    .cloned()
            };
            let new = rules
                .into_iter()
                .map(|rule| same(&rule).unwrap_or_else(|| RuleState::new(rule, origin, now)));
            let new: Vec<_> = new.collect();
            let is_replaced = |armed: &RuleState| armed.origin == origin && parts.contains(&armed.rule.kind);
            let others = old.iter().filter(|armed| !is_replaced(armed)).cloned();
            Ok(others.chain(new).collect())
        })
    }

    /// Puts a rule into force at run time: in the place of the one with its id, or before all others that
    /// were not set at run time. Of backend faults set at run time the latest comes first.
    ///
    /// # Errors
    /// If its id belongs to a rule of another origin, whose next reload would remove it.
    pub fn put(&self, rule: Rule) -> Result<(), IdConflict> {
        self.put_all(Script { rules: vec![rule] })
    }

    /// Puts a script into force at run time beside what is there, all at once.
    ///
    /// # Errors
    /// As for [`Faults::put`]; nothing has changed then.
    pub(crate) fn put_all(&self, script: Script) -> Result<(), IdConflict> {
        self.change(|old, now| {
            check(old, Origin::Admin, &script.rules)?;
            let mut new = old.to_vec();
            let (rules, faults): (Vec<_>, Vec<_>) = script
                .rules
                .into_iter()
                .partition(|rule| rule.kind == RuleKind::Rule);
            for rule in rules.into_iter().chain(faults.into_iter().rev()) {
                let known = position(&new, rule.kind, &rule.id);
                let armed = RuleState::new(rule, Origin::Admin, now);
                match (known, armed.rule.kind) {
                    (Some(place), _) => new[place] = armed,
                    (None, RuleKind::Rule) => new.push(armed),
                    (None, RuleKind::BackendFault) => new.insert(0, armed),
                }
            }
            Ok(new)
        })
    }

    /// Removes a rule or backend fault, and says whether there was one.
    pub fn remove(&self, kind: RuleKind, id: &str) -> bool {
        self.change_one(kind, id, |rules, place, _| drop(rules.remove(place)))
    }

    /// Switches a rule or backend fault on or off, and says whether there is one.
    pub fn set_enabled(&self, kind: RuleKind, id: &str, enabled: bool) -> bool {
        self.change_one(kind, id, |rules, place, now| {
            rules[place].set_enabled(enabled, now)
        })
    }

    /// Releases the calls of a rule, or of all, that hang until they are released. Says how many calls the
    /// rules held; none if there is no such rule.
    pub fn release(&self, id: Option<&str>) -> Option<u64> {
        let rules = self.rules();
        match id {
            Some(id) => position(&rules, RuleKind::Rule, id).map(|place| rules[place].release()),
            None => Some(of(&rules, RuleKind::Rule).map(|armed| armed.release()).sum()),
        }
    }

    /// Sets the counts of all rules to zero, each rule on or off as it was written, and the state to the first one.
    pub(crate) fn reset(&self) {
        for armed in of(&self.rules(), RuleKind::Rule) {
            armed.reset();
        }
        self.set_state(FIRST_STATE);
    }

    /// The state the rules are in.
    pub fn state(&self) -> Arc<str> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts the rules into a state.
    pub(crate) fn set_state(&self, state: &str) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state.into();
    }

    /// Every rule or backend fault, in the order in which they are asked.
    pub fn reports(&self, kind: RuleKind) -> Vec<Report> {
        of(&self.rules(), kind).map(|armed| armed.report()).collect()
    }

    /// How many rules there are, used-up ones included.
    pub fn len(&self) -> usize {
        of(&self.rules(), RuleKind::Rule).count()
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether an origin has this rule.
    pub(crate) fn has(&self, origin: Origin, Rule { kind, id, .. }: &Rule) -> bool {
        let rules = self.rules();
        position(&rules, *kind, id).is_some_and(|place| rules[place].origin == origin)
    }

    /// Selects and counts the faults of a call: the first matching rule and, of the backend faults, the first that refuses the
    /// call, else the one with the longest delay. A call that no enabled backend fault refuses reserves capacity.
    pub fn decide(&self, call: &dyn CallInfo) -> Decision {
        let rules = self.rules();
        let mut decision = Decision::default();
        if rules.is_empty() {
            return decision;
        }
        let now = self.began.elapsed();
        let mut has_backend_faults = false;
        // Locked until the rules have fired and the reservation exists, so that concurrent calls are decided one after
        // another. A call drops its reservation only after the array has changed, so limits always count it.
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let mut reserved = reservation::lock(&self.reservations);
        for armed in rules.iter().filter(|armed| armed.is_enabled()) {
            let is_asked = match armed.rule.kind {
                RuleKind::Rule => decision.rule.is_none(),
                RuleKind::BackendFault => {
                    has_backend_faults = true;
                    !decision.is_refused()
                }
            };
            if !is_asked || armed.rule.overlay.is_some() || !armed.rule.matches.covers(call, &state) {
                continue;
            }
            let Some(mut fired) = armed.take(call, self.seed, &reserved, now) else {
                continue;
            };
            if fired.rule().phase != Phase::After {
                fired.acts(&mut state);
            }
            match armed.rule.kind {
                RuleKind::Rule => decision.rule = Some(fired),
                RuleKind::BackendFault => decision.add(fired),
            }
        }
        if has_backend_faults && !decision.is_refused() {
            decision.reservation = reservation_key(call)
                .map(|key| Reservation::new(key, call.size(), &self.reservations, &mut reserved));
        }
        decision
    }

    /// Has a rule of phase `after` act that fired: it sets the state. None if it was for a state that another call
    /// has ended meanwhile; the firing is reverted then.
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

    /// Changes the rule of an id, and says whether there is one.
    fn change_one(
        &self,
        kind: RuleKind,
        id: &str,
        change: impl FnOnce(&mut Vec<Arc<RuleState>>, usize, Duration),
    ) -> bool {
        let mut found = None;
        let outcome: Result<(), IdConflict> = self.change(|old, now| {
            let mut new = old.to_vec();
            found = position(old, kind, id);
            if let Some(place) = found {
                change(&mut new, place, now);
            }
            Ok(new)
        });
        outcome.expect("changing one rule must not fail");
        found.is_some()
    }

    /// Exchanges the list, keeps it in order, and releases the calls of rules that left.
    fn change<E>(
        &self,
        change: impl FnOnce(&[Arc<RuleState>], Duration) -> Result<Vec<Arc<RuleState>>, E>,
    ) -> Result<(), E> {
        let mut armed = self.armed.write().unwrap_or_else(PoisonError::into_inner);
        let mut new = change(&armed, self.began.elapsed())?;
        new.sort_by_key(|armed| armed.origin);
        for gone in armed
            .iter()
            .filter(|old| !new.iter().any(|new| Arc::ptr_eq(old, new)))
        {
            gone.release();
        }
        let freeze = overlays(&new).find_map(|(overlay, since)| {
            let Overlay::FrozenList(age) = *overlay else {
                return None;
            };
            Some(Freeze { since, age })
        });
        *self.frozen.write().unwrap_or_else(PoisonError::into_inner) = freeze;
        let loss = overlays(&new).find_map(|(overlay, since)| {
            let Overlay::StateLoss(loses) = *overlay else {
                return None;
            };
            Some(Loss { since, loses })
        });
        self.loss
            .send_if_modified(|old| std::mem::replace(old, loss) != loss);
        *armed = new.into();
        Ok(())
    }
}

fn of(rules: &[Arc<RuleState>], kind: RuleKind) -> impl Iterator<Item = &Arc<RuleState>> {
    rules.iter().filter(move |armed| armed.rule.kind == kind)
}

fn position(rules: &[Arc<RuleState>], kind: RuleKind, id: &str) -> Option<usize> {
    rules
        .iter()
        .position(|armed| armed.rule.kind == kind && armed.rule.id == id)
}

/// The overlays in force, each with its begin since the driver's start. Earlier ones take precedence.
fn overlays(rules: &[Arc<RuleState>]) -> impl Iterator<Item = (&Overlay, Duration)> {
    let enabled = rules.iter().filter(|armed| armed.is_enabled());
    enabled.filter_map(|armed| Some((armed.rule.overlay.as_ref()?, armed.since())))
}

/// Checks that no id of rules of an origin belongs to one of another origin.
fn check(there: &[Arc<RuleState>], origin: Origin, rules: &[Rule]) -> Result<(), IdConflict> {
    for rule in rules {
        let owner = position(there, rule.kind, &rule.id).map(|place| there[place].origin);
        if let Some(owner) = owner.filter(|owner| *owner != origin) {
            return Err(IdConflict {
                id: rule.id.clone(),
                kind: rule.kind.name(),
                owner,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
