//! Rules that do not fit to the others.

use std::sync::Arc;

use super::rule::State;
use super::rule_state::RuleState;
use super::{FIRST_STATE, Origin, Rule, position};

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
}

/// Checks that no id of an origin's rules belongs to another origin, and that some rule sets each state that they need.
pub(super) fn check(there: &[Arc<RuleState>], origin: Origin, rules: &[Rule]) -> Result<(), RuleConflict> {
    for rule in rules {
        let owner = position(there, rule.kind, &rule.id).map(|index| there[index].origin);
        if let Some(owner) = owner.filter(|owner| *owner != origin) {
            return Err(RuleConflict::Id {
                id: rule.id.clone(),
                kind: rule.kind.name(),
                owner,
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
