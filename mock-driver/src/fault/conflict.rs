//! Rules that do not fit to the others.

use std::fmt;
use std::sync::Arc;

use super::overlay::{DeviceFault, Overlay};
use super::rule::{CallEnd, LocationMatch, Match, State};
use super::rule_state::RuleState;
use super::{FIRST_STATE, Faults, Origin, Rule};

/// A rule does not fit to the others.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum RuleConflict {
    #[error("id \"{id}\" belongs to a {kind} of the {} already: take another, or remove that one", owner.name())]
    Id {
        id: String,
        kind: &'static str,
        owner: Origin,
    },
    #[error(
        "rule \"{id}\": match.while.state: no rule sets the state \"{state}\", so the rule would never fire: add a rule with \
         action: {{set-state: {state}}} first, or in the same file"
    )]
    State { id: String, state: String },
    #[error("{kind} \"{id}\" has no effect here: {needs}")]
    NoEffect {
        id: String,
        kind: &'static str,
        needs: Needs,
    },
    #[error("rule \"{id}\": match.io: {reason}")]
    Io { id: String, reason: String },
}

/// The part of the driver that a rule changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Needs {
    /// Calls only, which a proxy has, too.
    #[default]
    Calls,
    Services,
    Array,
    Node,
}

// === impl Needs ===

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Calls => "it needs calls",
            Self::Services => {
                "it changes this driver's own services, not those behind --proxy-to; inject it in that driver"
            }
            Self::Array => "it changes the array, which is in another process; inject it there",
            Self::Node => "it changes the node, which is in another process; inject it there",
        })
    }
}

// === impl Rule ===

impl Rule {
    fn is_about_absent_volumes(&self) -> bool {
        let is_absent = |matches: &Match| matches.r#while.volume == Some(LocationMatch::Absent);
        is_absent(&self.matches) || self.matches.not.as_deref().is_some_and(is_absent)
    }

    fn needs(&self) -> Needs {
        match (&self.overlay, &self.action.end) {
            (Some(Overlay::Device(_, DeviceFault::Absent) | Overlay::Disk(..)), _) => Needs::Node,
            (Some(Overlay::FrozenList(_) | Overlay::ListLacks(_) | Overlay::ListAdds(..)), _) => Needs::Array,
            (Some(Overlay::Device(_, DeviceFault::Wrong(_)) | Overlay::NotReady(_)), _)
            | (None, Some(CallEnd::Capabilities(_))) => Needs::Services,
            (None, _) if self.counts_volumes || self.is_about_absent_volumes() => Needs::Array,
            (None, _) => Needs::Calls,
        }
    }
}

/// Whether a rule names a volume on a node.
pub(crate) type NamesVolume<'a> = &'a dyn Fn(&str, &str) -> bool;

/// Checks whether a device fault can take effect in this process.
pub(crate) trait DeviceFaultCheck: fmt::Debug + Send + Sync {
    /// Why a rule for these volumes would have no effect now; `None` if it has one.
    fn reason(&self, is_named: NamesVolume<'_>) -> Option<String>;
}

/// A reason for all volumes.
impl DeviceFaultCheck for String {
    fn reason(&self, _: NamesVolume<'_>) -> Option<String> {
        Some(self.clone())
    }
}

// === impl Faults ===

impl Faults {
    /// Refuses device faults from now on for which the limit has a reason.
    pub(crate) fn add_device_fault_check(&self, limit: impl DeviceFaultCheck + 'static) {
        crate::lock(&self.device_fault_checks).push(Box::new(limit));
    }

    /// Checks that device faults among the rules take effect at once.
    pub(super) fn check_io<'r>(&self, rules: impl IntoIterator<Item = &'r Rule>) -> Result<(), RuleConflict> {
        let limits = crate::lock(&self.device_fault_checks);
        for rule in rules.into_iter().filter(|rule| rule.matches.io.is_some()) {
            let is_named = |volume: &str, node: &str| rule.matches.names(volume, node);
            if let Some(reason) = limits.iter().find_map(|limit| limit.reason(&is_named)) {
                return Err(RuleConflict::Io {
                    id: rule.id.clone(),
                    reason,
                });
            }
        }
        Ok(())
    }

    /// The device faults that have no effect now.
    pub(crate) fn io_conflicts(&self) -> Vec<RuleConflict> {
        let rules = self.rules();
        let checked = rules.iter().map(|state| self.check_io([&state.rule]));
        checked.filter_map(Result::err).collect()
    }

    /// Whether some rule depends on the node of a call.
    pub(crate) fn names_node(&self) -> bool {
        let rules = self.rules();
        rules
            .iter()
            .any(|rule_state| rule_state.rule.matches.names_node())
    }

    /// Whether a rule is a device fault of the volume, or is one when it is enabled.
    pub(crate) fn names_io(&self, volume: &str, node: &str) -> bool {
        let is_named = |rule: &Rule| rule.matches.io.is_some() && rule.matches.names(volume, node);
        self.rules().iter().any(|rule_state| is_named(&rule_state.rule))
    }
}

/// Checks that this process has what an origin's rules change, that no id of theirs belongs to another origin or kind, and that
/// some rule sets each state that they need. `there` are the rules that stay.
pub(super) fn check(
    there: &[&Arc<RuleState>],
    origin: Origin,
    rules: &[Rule],
    has: &[Needs],
) -> Result<(), RuleConflict> {
    for rule in rules {
        let needs = rule.needs();
        if !has.contains(&needs) {
            return Err(RuleConflict::NoEffect {
                id: rule.id.clone(),
                kind: rule.kind.name(),
                needs,
            });
        }
        // In the journal, rules and backend faults share the ids.
        let mut same_id = there.iter().filter(|other| other.rule.id == rule.id);
        if let Some(other) = same_id.find(|other| other.origin != origin || other.rule.kind != rule.kind) {
            return Err(RuleConflict::Id {
                id: rule.id.clone(),
                kind: other.rule.kind.name(),
                owner: other.origin,
            });
        }
        let sets = |rule: &Rule, state: &str| {
            let set = rule.action.set_state.as_ref();
            set.is_some_and(|set| *set.0 == *state)
        };
        let mut all = rules.iter().chain(there.iter().map(|other| &other.rule));
        if let Some(State(state)) = &rule.matches.r#while.state
            && **state != *FIRST_STATE
            && !all.any(|rule| sets(rule, state))
        {
            return Err(RuleConflict::State {
                id: rule.id.clone(),
                state: state.to_string(),
            });
        }
    }
    Ok(())
}
