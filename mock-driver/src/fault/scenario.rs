//! Built-in scenarios: lists of fault rules for failures of storage that occur in practice, by name.
//!
//! Each is a YAML file in `scenarios/` in the format of `--faults`. Its first line is a comment with a one-sentence
//! description.

use super::{Faults, Origin, Rule, RuleConflict};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    pub name: &'static str,
    pub yaml: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scenario \"{name}\": use one of {}", Scenario::ALL.iter().map(|scenario| scenario.name).collect::<Vec<_>>().join(", "))]
pub struct UnknownScenario {
    name: String,
}

macro_rules! scenarios {
    ($($name:literal),+ $(,)?) => {
        &[$(Scenario {
            name: $name,
            yaml: include_str!(concat!("scenarios/", $name, ".yaml")),
        }),+]
    };
}

// === impl Scenario ===

impl Scenario {
    pub const ALL: &'static [Self] = scenarios![
        "array-busy",
        "attach-full",
        "attach-late",
        "attach-uncertain",
        "cloud-lock",
        "crash-mid-attach",
        "create-exhausted",
        "detach-fails",
        "detach-hangs",
        "detach-lost",
        "detach-slow",
        "device-missing",
        "disk-damaged",
        "disk-foreign",
        "flaky-10pct",
        "limit-lie",
        "limit-shrinks",
        "list-lies",
        "node-lost",
        "node-resize-infeasible",
        "probe-hangs",
        "rate-limit",
        "resize-denied",
        "resize-infeasible",
        "slow-start",
        "socket-flaps",
        "stage-final",
        "stage-uncertain",
        "stale-list",
        "unstage-fails",
        "unstage-uncertain",
    ];

    /// The scenario with this name.
    ///
    /// # Errors
    /// It does not exist.
    pub fn named(name: &str) -> Result<&'static Self, UnknownScenario> {
        let found = Self::ALL.iter().find(|scenario| scenario.name == name);
        found.ok_or_else(|| UnknownScenario {
            name: name.to_owned(),
        })
    }

    pub fn about(&self) -> &'static str {
        let first = self.yaml.lines().next().unwrap_or_default();
        first.trim_start_matches('#').trim()
    }

    pub fn rules(&self) -> Vec<Rule> {
        Rule::read_list(self.yaml).expect("a built-in scenario must be valid")
    }

    pub(crate) fn help() -> String {
        let longest = Self::ALL
            .iter()
            .map(|scenario| scenario.name.len())
            .max()
            .unwrap_or_default();
        let line = |scenario: &Self| format!("{:longest$}  {}\n", scenario.name, scenario.about());
        Self::ALL.iter().map(line).collect()
    }
}

/// Activates the rules of scenarios, and others that follow them.
///
/// # Errors
/// An id is not unique.
pub fn play(scenarios: &[&Scenario], others: &[Rule], faults: &Faults) -> Result<(), RuleConflict> {
    let mut whole = Vec::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        if scenarios[..index].contains(scenario) {
            continue;
        }
        whole.extend(scenario.rules());
        tracing::info!(scenario = scenario.name, about = scenario.about(), "playing");
    }
    whole.extend_from_slice(others);
    faults.load(Origin::Scenario, whole)
}

/// Activates or removes the rules of a scenario. What is left of the other scenarios, and other rules, remain.
///
/// # Errors
/// An id is not unique.
pub(crate) fn switch(
    wanted: &Scenario,
    enabled: bool,
    others: &[Rule],
    faults: &Faults,
) -> Result<(), RuleConflict> {
    let is_kept = |scenario: &Scenario, rule: &Rule| match scenario.name == wanted.name {
        true => enabled,
        false => faults.has(Origin::Scenario, rule),
    };
    let known = Scenario::ALL.iter().flat_map(|scenario| {
        let rules = scenario.rules().into_iter();
        rules.filter(move |rule| is_kept(scenario, rule))
    });
    faults.load(Origin::Scenario, known.chain(others.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fault::RuleKind;

    #[test]
    fn every_scenario_is_valid_with_description_and_unique_ids() {
        let mut ids = BTreeSet::new();
        for scenario in Scenario::ALL {
            let rules =
                Rule::read_list(scenario.yaml).unwrap_or_else(|error| panic!("{}: {error}", scenario.name));
            let about = scenario.about();
            assert!(
                scenario.yaml.starts_with("# ") && about.ends_with('.'),
                "{}: {about}",
                scenario.name
            );
            assert!(!rules.is_empty(), "{}", scenario.name);
            for id in rules.into_iter().map(|rule| rule.id) {
                assert!(id.starts_with(scenario.name), "{}: {id}", scenario.name);
                assert!(ids.insert(id.clone()), "{id} is there twice");
            }
        }
        assert!(Scenario::ALL.is_sorted_by_key(|scenario| scenario.name));
    }

    #[test]
    fn all_scenarios_can_be_played_together() {
        let faults = Faults::default();
        play(
            &Scenario::ALL.iter().chain(Scenario::ALL).collect::<Vec<_>>(),
            &[],
            &faults,
        )
        .unwrap();
        let rules: usize = Scenario::ALL.iter().map(|scenario| scenario.rules().len()).sum();
        let reports = [RuleKind::Rule, RuleKind::BackendFault].map(|kind| faults.reports(kind).len());
        assert_eq!(reports[0] + reports[1], rules);
        assert_eq!(faults.len(), reports[0]);
    }

    #[test]
    fn start_of_a_scenario_keeps_the_rest_of_another() {
        let faults = Faults::default();
        let large = Scenario::ALL
            .iter()
            .find(|scenario| scenario.rules().len() > 1)
            .unwrap();
        let other = Scenario::ALL
            .iter()
            .find(|other| other.name != large.name)
            .unwrap();
        switch(large, true, &[], &faults).unwrap();
        let rules = large.rules();
        assert!(faults.remove(rules[0].kind, &rules[0].id));
        for enabled in [true, false] {
            switch(other, enabled, &[], &faults).unwrap();
            assert!(!faults.has(Origin::Scenario, &rules[0]), "{enabled}");
            assert!(faults.has(Origin::Scenario, &rules[1]), "{enabled}");
            assert_eq!(faults.has(Origin::Scenario, &other.rules()[0]), enabled);
        }
    }
}
