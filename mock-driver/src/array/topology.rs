//! Topology of nodes and pools, and accessibility requirements.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::listed;

/// Topology segments. CSI compares keys without regard to case, so they are stored in lower case. Empty means everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segments(BTreeMap<String, String>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// The object must be accessible from one of these; empty for anywhere.
    pub requisite: Vec<Segments>,
    /// Preferred ones, in order.
    pub preferred: Vec<Segments>,
}

// === impl Segments ===

impl Segments {
    pub(crate) fn as_map(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    /// Whether it means everywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether objects with the topology `other` are accessible from a node with the topology `self`.
    pub(crate) fn can_access(&self, other: &Self) -> bool {
        other.0.iter().all(|(key, value)| self.0.get(key) == Some(value))
    }

    /// Whether an object with the topology `self` satisfies a requirement for `required`.
    ///
    /// A requirement may have fewer keys, such as a region without a zone, or more, such as a host; one with unknown keys only
    /// is for other storage.
    pub(crate) fn satisfies(&self, required: &Self) -> bool {
        if self.is_empty() || required.is_empty() {
            return true;
        }
        let mut shared = required
            .0
            .iter()
            .filter(|(key, _)| self.0.contains_key(*key))
            .peekable();
        shared.peek().is_some() && shared.all(|(key, value)| self.0.get(key) == Some(value))
    }
}

impl<K: AsRef<str>, V: Into<String>> FromIterator<(K, V)> for Segments {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let lower = |(key, value): (K, V)| (key.as_ref().to_lowercase(), value.into());
        Self(pairs.into_iter().map(lower).collect())
    }
}

impl fmt::Display for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segments = self.0.iter().map(|(key, value)| format!("{key}={value}"));
        write!(f, "{{{}}}", listed(segments))
    }
}

// === impl Requirement ===

impl Requirement {
    /// Whether an object with the topology `segments` satisfies the requirement.
    pub(crate) fn is_satisfied_by(&self, segments: &Segments) -> bool {
        self.requisite.is_empty() || self.requisite.iter().any(|required| segments.satisfies(required))
    }

    /// The segments of the requirement, the most preferred first.
    pub(super) fn preferences(&self) -> impl Iterator<Item = &Segments> {
        self.preferred.iter().chain(&self.requisite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk(pairs: &[(&str, &str)]) -> Segments {
        pairs.iter().copied().collect()
    }

    #[test]
    fn segments_satisfy_requirements_with_fewer_or_more_keys_but_not_with_other_values() {
        let segments = mk(&[("region", "r"), ("zone", "a")]);
        // (required, satisfied)
        let table = [
            (mk(&[]), true),
            (mk(&[("region", "r")]), true),
            (mk(&[("zone", "a"), ("host", "h")]), true),
            (mk(&[("ZONE", "a")]), true),
            (mk(&[("zone", "b")]), false),
            (mk(&[("region", "r"), ("zone", "b")]), false),
            (mk(&[("other/zone", "a")]), false),
        ];
        for (required, satisfied) in table {
            assert_eq!(segments.satisfies(&required), satisfied, "{required}");
        }
        assert!(mk(&[]).satisfies(&mk(&[("zone", "b")])), "empty means everywhere");
    }

    #[test]
    fn nodes_can_access_objects_whose_segments_they_all_have() {
        let node = mk(&[("zone", "a"), ("host", "h")]);
        assert!(node.can_access(&mk(&[("Zone", "a")])));
        assert!(node.can_access(&mk(&[])));
        assert!(!node.can_access(&mk(&[("zone", "b")])));
        assert!(!mk(&[]).can_access(&mk(&[("zone", "a")])));
    }
}
