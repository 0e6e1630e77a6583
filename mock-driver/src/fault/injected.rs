//! Totals of injected faults. Prometheus counters must not decrease, so they do not belong to the active rules: a reset of the
//! rules, and a replaced, reloaded or removed rule, leave them unchanged. A reset of the driver sets them to 0, as a restart does.

use std::collections::{BTreeMap, HashMap};

use tonic::Code;

use super::RuleKind;
use crate::rpc::method;

/// The label of what exceeds a limit.
const OTHER: &str = "other";

/// The labels of a total.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InjectedKey {
    pub(crate) kind: RuleKind,
    pub(crate) rule: String,
    /// The name of the method without its service.
    pub(crate) method: String,
    /// The number of the code that the rule returns, if any.
    pub(crate) code: Option<i32>,
}

/// Number of applied firings by rule, method and code.
#[derive(Debug, Default)]
pub(super) struct InjectedTotals {
    totals: BTreeMap<InjectedKey, u64>,
    /// Number of totals by rule.
    by_rule: HashMap<(RuleKind, String), usize>,
}

// === impl InjectedTotals ===

impl InjectedTotals {
    /// Maximum number of methods with a total of their own, by rule. CSI has far fewer; a client of the proxy may call any
    /// method.
    const METHODS: usize = 1000;
    /// Maximum number of all totals: a client of the admin API may set rules with any number of ids.
    const TOTALS: usize = 10_000;

    /// Counts a firing that is final, by the path of the call's method.
    pub(super) fn add(&mut self, kind: RuleKind, rule: &str, method: &str, code: Option<Code>) {
        let mut key = InjectedKey {
            kind,
            rule: rule.to_owned(),
            method: method::short(method).to_owned(),
            code: code.map(i32::from),
        };
        if let Some(total) = self.totals.get_mut(&key) {
            *total += 1;
            return;
        }
        let totals_of_rule = self.by_rule.entry((kind, rule.to_owned())).or_default();
        if *totals_of_rule >= Self::METHODS {
            key.method = OTHER.to_owned();
        } else {
            *totals_of_rule += 1;
        }
        if self.totals.len() >= Self::TOTALS && !self.totals.contains_key(&key) {
            key.rule = OTHER.to_owned();
            key.method = OTHER.to_owned();
            self.by_rule.remove(&(kind, rule.to_owned()));
        }
        *self.totals.entry(key).or_default() += 1;
    }

    pub(super) fn all(&self) -> Vec<(InjectedKey, u64)> {
        let totals = self.totals.iter();
        totals.map(|(key, total)| (key.clone(), *total)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_beyond_the_limit_are_counted_together() {
        let mut totals = InjectedTotals::default();
        for number in 0..3000 {
            let method = format!("/any.v1.Service/Method{number}");
            totals.add(RuleKind::Rule, "x", &method, None);
        }
        let all = totals.all();
        assert_eq!(all.len(), 1001);
        let other = all.iter().find(|(key, _)| key.method == OTHER);
        assert_eq!(other.map(|(_, total)| *total), Some(2000));
        assert_eq!(all.iter().map(|(_, total)| total).sum::<u64>(), 3000);
    }

    #[test]
    fn rules_beyond_the_limit_are_counted_together() {
        let mut totals = InjectedTotals::default();
        for round in 1..=2 {
            for number in 0..3 * InjectedTotals::TOTALS {
                totals.add(RuleKind::Rule, &number.to_string(), "/a/B", Some(Code::Internal));
            }
            let all = totals.all();
            assert_eq!(all.len(), InjectedTotals::TOTALS + 1, "round {round}");
            assert!(totals.by_rule.len() <= InjectedTotals::TOTALS);
            let sum: u64 = all.iter().map(|(_, total)| total).sum();
            assert_eq!(sum, round * 3 * u64::try_from(InjectedTotals::TOTALS).unwrap());
        }
    }
}
