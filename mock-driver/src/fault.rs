//! Fault injection: an ordered list of rules. The first rule that matches a call applies to it. Backend faults are rules
//! about the array's state; a call gets at most one of them (`condition`), and they change what the array reports
//! (`overlay`).
//!
//! See `docs/faults.md` for the syntax.
//!
//! In phase `before`, an action with an end replaces the operation; a delay or a hang postpones it. In phase `after`, a
//! rule fires only if the call succeeded; otherwise the firing is returned to the next call. The call's volume stays
//! locked while a rule delays it.
//!
//! The list can be replaced while calls run: a call keeps its rule, and an unchanged rule keeps its count, so that adding
//! one rule to a file does not reset the others. Rules set at run time precede those of the file, and those precede a
//! scenario's.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::call_info::{ArrayUsage, CallInfo, VolumeLocation};
use self::conflict::check;
pub(crate) use self::conflict::{DeviceFaultCheck, NamesVolume};
pub use self::conflict::{Needs, RuleConflict};
pub(crate) use self::decision::Decision;
pub use self::file::FaultFile;
pub(crate) use self::file::LoadError;
pub(crate) use self::injected::InjectedKey;
use self::injected::InjectedTotals;
pub(crate) use self::io::{FilePath, Io, IoEnd, IoError, IoKind};
use self::overlay::Overlay;
pub(crate) use self::overlay::StaleList;
pub use self::overlay::{DeviceFault, DiskFault};
pub(crate) use self::parse::RuleError;
use self::random::DelayDistribution;
pub use self::random::Seed;
pub(crate) use self::reservation::Reservations;
pub(crate) use self::rule::{CallEnd, Hang, Phase};
pub use self::rule::{Exit, Rule, RuleKind};
pub(crate) use self::rule_state::ActiveFault;
use self::rule_state::RuleState;
pub use self::rule_state::{Origin, Report};
pub(crate) use self::value_match::ValueMatch;

mod backend_fault;
mod call_info;
mod call_match;
mod condition;
mod conflict;
mod decision;
pub(crate) mod duration;
mod edit;
pub(crate) mod field_path;
mod file;
mod in_force;
mod injected;
mod io;
mod overlay;
mod parse;
mod pattern;
mod random;
mod reservation;
pub(crate) mod response;
mod rule;
mod rule_state;
pub mod scenario;
mod value_match;

const FIRST_STATE: &str = "start";

/// The active rules, shared by the fault file, the calls and the admin API.
#[derive(Debug)]
pub struct Faults {
    /// The seed of all random draws.
    pub seed: Seed,
    has: Vec<Needs>,
    rules: RwLock<Arc<[Arc<RuleState>]>>,
    of_file: Mutex<Vec<Rule>>,
    state: RwLock<Arc<str>>,
    began: Instant,
    /// Independent of the active rules.
    injected: Mutex<InjectedTotals>,
    reservations: Arc<Mutex<Reservations>>,
    device_fault_checks: Mutex<Vec<Box<dyn DeviceFaultCheck>>>,
    /// The frozen list, if any; shared with the store, which keeps that state.
    pub(crate) frozen: Arc<RwLock<Option<StaleList>>>,
}

// === impl Faults ===

impl Default for Faults {
    fn default() -> Self {
        Self::new(Seed(0))
    }
}

impl Faults {
    /// No rules. All random draws follow from the seed.
    pub fn new(seed: Seed) -> Self {
        Self {
            seed,
            has: vec![Needs::Calls, Needs::Services, Needs::Array, Needs::Node],
            rules: RwLock::default(),
            of_file: Mutex::default(),
            state: RwLock::new(FIRST_STATE.into()),
            began: Instant::now(),
            injected: Mutex::default(),
            reservations: Arc::default(),
            device_fault_checks: Mutex::default(),
            frozen: Arc::default(),
        }
    }

    /// Refuses rules that change a part outside this process.
    #[must_use]
    pub(crate) fn within(self, has: Vec<Needs>) -> Self {
        Self { has, ..self }
    }

    /// Replaces the rules and backend faults of an origin.
    ///
    /// # Errors
    /// An id belongs to another origin; nothing has changed then.
    pub fn load(&self, origin: Origin, rules: Vec<Rule>) -> Result<(), RuleConflict> {
        let of_file = (origin == Origin::File).then(|| rules.clone());
        self.replace_parts(origin, &[RuleKind::Rule, RuleKind::BackendFault], rules)?;
        if let Some(rules) = of_file {
            *crate::lock(&self.of_file) = rules;
        }
        Ok(())
    }

    /// Replaces the rules of an origin; its backend faults remain.
    ///
    /// # Errors
    /// Those of [`Faults::load`].
    pub fn replace(&self, origin: Origin, rules: Vec<Rule>) -> Result<(), RuleConflict> {
        self.replace_parts(origin, &[RuleKind::Rule], rules)
    }

    fn replace_parts(
        &self,
        origin: Origin,
        parts: &[RuleKind],
        rules: Vec<Rule>,
    ) -> Result<(), RuleConflict> {
        let is_replaced = |old: &RuleState| old.origin == origin && parts.contains(&old.rule.kind);
        self.change(|old, now| {
            let others: Vec<_> = old.iter().filter(|old| !is_replaced(old)).collect();
            let same = |rule: &Rule| {
                old.iter()
                    .find(|rule_state| rule_state.origin == origin && rule_state.rule == *rule)
                    .cloned()
            };
            self.check_io(rules.iter().filter(|rule| same(rule).is_none()))?;
            check(&others, origin, &rules, &self.has)?;
            let new = rules
                .into_iter()
                .map(|rule| same(&rule).unwrap_or_else(|| RuleState::new(rule, origin, now)));
            let new: Vec<_> = new.collect();
            Ok(others.into_iter().cloned().chain(new).collect())
        })
    }

    /// Adds or replaces a rule at run time. A new one precedes all rules that were not set at run time. The latest backend fault
    /// set at run time comes first.
    ///
    /// # Errors
    /// The id belongs to another origin, whose next reload would remove the rule.
    pub fn put(&self, rule: Rule) -> Result<(), RuleConflict> {
        self.put_all(vec![rule])
    }

    /// Adds or replaces rules and backend faults at run time, atomically.
    ///
    /// # Errors
    /// Those of [`Faults::put`]; nothing has changed then.
    pub(crate) fn put_all(&self, rules: Vec<Rule>) -> Result<(), RuleConflict> {
        self.change(|old, now| {
            self.check_added(old, &rules)?;
            let mut new = old.to_vec();
            let (rules, faults): (Vec<_>, Vec<_>) =
                rules.into_iter().partition(|rule| rule.kind == RuleKind::Rule);
            for rule in rules.into_iter().chain(faults.into_iter().rev()) {
                let known = position(&new, rule.kind, &rule.id);
                let rule_state = RuleState::new(rule, Origin::Admin, now);
                match (known, rule_state.rule.kind) {
                    (Some(index), _) => new[index] = rule_state,
                    (None, RuleKind::Rule) => new.push(rule_state),
                    (None, RuleKind::BackendFault) => new.insert(0, rule_state),
                }
            }
            Ok(new)
        })
    }

    /// Whether [`Faults::put_all`] would accept these rules now.
    ///
    /// # Errors
    /// Those of [`Faults::put_all`].
    pub(crate) fn check(&self, rules: &[Rule]) -> Result<(), RuleConflict> {
        self.check_added(&self.rules(), rules)
    }

    /// Checks rules that are set at run time, and replace those with their ids.
    fn check_added(&self, there: &[Arc<RuleState>], rules: &[Rule]) -> Result<(), RuleConflict> {
        let is_replaced = |old: &RuleState| {
            let mut rules = rules.iter();
            old.origin == Origin::Admin
                && rules.any(|rule| rule.kind == old.rule.kind && rule.id == old.rule.id)
        };
        let others: Vec<_> = there.iter().filter(|old| !is_replaced(old)).collect();
        self.check_io(rules)?;
        check(&others, Origin::Admin, rules, &self.has)
    }

    /// Removes a rule or backend fault; returns whether it existed.
    pub fn remove(&self, kind: RuleKind, id: &str) -> bool {
        self.change_one(kind, id, |rules, index, _| drop(rules.remove(index)))
    }

    /// Enables or disables a rule or backend fault; returns whether it exists.
    pub fn set_enabled(&self, kind: RuleKind, id: &str, enabled: bool) -> bool {
        self.change_one(kind, id, |rules, index, now| {
            rules[index].set_enabled(enabled, now)
        })
    }

    /// Ends the delays and hangs of the calls of one rule or of all, and returns the number of calls; `None` if the rule does not
    /// exist.
    pub fn release(&self, id: Option<&str>) -> Option<u64> {
        let rules = self.rules();
        match id {
            Some(id) => position(&rules, RuleKind::Rule, id).map(|index| rules[index].release()),
            None => Some(
                of(&rules, RuleKind::Rule)
                    .map(|rule_state| rule_state.release())
                    .sum(),
            ),
        }
    }

    /// Resets the counts of all rules, their enabled flags and the state; the totals remain.
    pub(crate) fn reset(&self) {
        for rule_state in of(&self.rules(), RuleKind::Rule) {
            rule_state.reset();
        }
        self.set_state(FIRST_STATE);
    }

    /// Returns to the rules of the fault file, without counts and totals, and releases the calls of the rules before.
    ///
    /// # Errors
    /// A rule would have no effect on a volume that is published; nothing has changed then.
    pub(crate) fn restart(&self) -> Result<(), RuleConflict> {
        let rules = crate::lock(&self.of_file).clone();
        self.change(|_, now| {
            self.check_io(&rules)?;
            let new = rules
                .into_iter()
                .map(|rule| RuleState::new(rule, Origin::File, now));
            Ok(new.collect())
        })?;
        *crate::lock(&self.injected) = InjectedTotals::default();
        self.set_state(FIRST_STATE);
        Ok(())
    }

    pub fn state(&self) -> Arc<str> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_state(&self, state: &str) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = state.into();
    }

    /// All rules or backend faults in their order.
    pub fn reports(&self, kind: RuleKind) -> Vec<Report> {
        of(&self.rules(), kind)
            .map(|rule_state| rule_state.report())
            .collect()
    }

    /// The totals of applied firings since the start or the driver's reset, also of rules that were reset, replaced or removed.
    pub(crate) fn injected(&self) -> Vec<(InjectedKey, u64)> {
        crate::lock(&self.injected).all()
    }

    /// Number of rules, including those that have reached their limit.
    pub fn len(&self) -> usize {
        of(&self.rules(), RuleKind::Rule).count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn has(&self, origin: Origin, Rule { kind, id, .. }: &Rule) -> bool {
        let rules = self.rules();
        position(&rules, *kind, id).is_some_and(|index| rules[index].origin == origin)
    }

    fn rules(&self) -> Arc<[Arc<RuleState>]> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the rule with this id; returns whether it exists.
    fn change_one(
        &self,
        kind: RuleKind,
        id: &str,
        change: impl FnOnce(&mut Vec<Arc<RuleState>>, usize, Duration),
    ) -> bool {
        let mut found = None;
        let outcome: Result<(), RuleConflict> = self.change(|old, now| {
            let mut new = old.to_vec();
            found = position(old, kind, id);
            if let Some(index) = found {
                change(&mut new, index, now);
            }
            Ok(new)
        });
        outcome.expect("changing one rule must not fail");
        found.is_some()
    }

    /// Replaces the list, sorts it, and releases the calls of removed rules.
    fn change<E>(
        &self,
        change: impl FnOnce(&[Arc<RuleState>], Duration) -> Result<Vec<Arc<RuleState>>, E>,
    ) -> Result<(), E> {
        let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        let mut new = change(&rules, self.began.elapsed())?;
        new.sort_by_key(|rule_state| rule_state.origin);
        for gone in rules
            .iter()
            .filter(|old| !new.iter().any(|new| Arc::ptr_eq(old, new)))
        {
            gone.release();
        }
        let freeze = overlays(&new).find_map(|(overlay, since)| {
            let Overlay::FrozenList(age) = *overlay else {
                return None;
            };
            Some(StaleList { since, age })
        });
        *self.frozen.write().unwrap_or_else(PoisonError::into_inner) = freeze;
        *rules = new.into();
        Ok(())
    }
}

fn of(rules: &[Arc<RuleState>], kind: RuleKind) -> impl Iterator<Item = &Arc<RuleState>> {
    rules.iter().filter(move |state| state.rule.kind == kind)
}

fn position(rules: &[Arc<RuleState>], kind: RuleKind, id: &str) -> Option<usize> {
    rules
        .iter()
        .position(|state| state.rule.kind == kind && state.rule.id == id)
}

/// The active overlays, each with its start since the driver's start. Earlier ones take precedence.
fn overlays(rules: &[Arc<RuleState>]) -> impl Iterator<Item = (&Overlay, Duration)> {
    let enabled = rules.iter().filter(|state| state.is_enabled());
    enabled.filter_map(|state| Some((state.rule.overlay.as_ref()?, state.since())))
}

#[cfg(test)]
mod tests;
