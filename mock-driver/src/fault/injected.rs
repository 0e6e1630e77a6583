//! Totals of injected faults. Prometheus counters must not decrease, so they do not belong to the active rules: a reset of the
//! rules, and a replaced, reloaded or removed rule, leave them unchanged. A reset of the driver sets them to 0, as a restart does.

use std::collections::BTreeMap;

use tonic::Code;

use super::RuleKind;
use crate::rpc::method;

/// The label of what exceeds a limit.
const OTHER: &str = "other";

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
pub(super) struct InjectedTotals(BTreeMap<InjectedKey, u64>);

// === impl InjectedTotals ===

impl InjectedTotals {
    /// Maximum number of totals: a client may set rules with any number of ids, and call any method of a proxy.
    const MAX: usize = 10_000;

    /// Counts a firing that is final, by the path of the call's method.
    pub(super) fn add(&mut self, kind: RuleKind, rule: &str, method: &str, code: Option<Code>) {
        let mut key = InjectedKey {
            kind,
            rule: rule.to_owned(),
            method: method::short(method).to_owned(),
            code: code.map(i32::from),
        };
        if self.0.len() >= Self::MAX && !self.0.contains_key(&key) {
            key.rule = OTHER.to_owned();
            key.method = OTHER.to_owned();
        }
        *self.0.entry(key).or_default() += 1;
    }

    pub(super) fn all(&self) -> Vec<(InjectedKey, u64)> {
        let totals = self.0.iter();
        totals.map(|(key, total)| (key.clone(), *total)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_beyond_the_limit_are_counted_together() {
        let mut totals = InjectedTotals::default();
        for round in 1..=2 {
            for number in 0..3 * InjectedTotals::MAX {
                let number = number.to_string();
                let (rule, method) = match round {
                    1 => (number.as_str(), "/a/B"),
                    _ => ("x", number.as_str()),
                };
                totals.add(RuleKind::Rule, rule, method, Some(Code::Internal));
            }
            let all = totals.all();
            assert_eq!(all.len(), InjectedTotals::MAX + 1, "round {round}");
            let sum: u64 = all.iter().map(|(_, total)| total).sum();
            assert_eq!(sum, round * 3 * u64::try_from(InjectedTotals::MAX).unwrap());
        }
    }
}
