//! Topology of nodes and pools, and accessibility requirements.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// Topology segments. CSI compares keys without regard to case, so they are stored in lower case. Empty means everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segments(BTreeMap<String, String>);

/// An accessibility requirement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// The object must be accessible from one of these; empty for anywhere.
    pub requisite: Vec<Segments>,
    /// Preferred ones, in order.
    pub preferred: Vec<Segments>,
}

// === impl Segments ===

impl Segments {
    /// The keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether it means everywhere.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether objects at `place` are accessible from a node at `self`.
    pub(crate) fn reaches(&self, place: &Self) -> bool {
        place.0.iter().all(|(key, value)| self.0.get(key) == Some(value))
    }

    /// Whether an object at `self` satisfies a requirement for `asked`.
    ///
    /// A requirement may have fewer keys, such as a region without a zone, or more, such as a host; one with unknown keys only
    /// is for other storage.
    pub(crate) fn suits(&self, asked: &Self) -> bool {
        if self.is_empty() || asked.is_empty() {
            return true;
        }
        let mut shared = asked
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
        f.write_str("{")?;
        for (number, (key, value)) in self.iter().enumerate() {
            let comma = if number == 0 { "" } else { ", " };
            write!(f, "{comma}{key}={value}")?;
        }
        f.write_str("}")
    }
}

// === impl Requirement ===

impl Requirement {
    /// Whether an object at `place` satisfies it.
    pub(crate) fn admits(&self, place: &Segments) -> bool {
        self.requisite.is_empty() || self.requisite.iter().any(|asked| place.suits(asked))
    }

    /// The segments of the requirement, the most preferred first.
    pub(super) fn wishes(&self) -> impl Iterator<Item = &Segments> {
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
    fn a_place_suits_who_asks_for_less_or_more_but_not_for_another() {
        let place = mk(&[("region", "r"), ("zone", "a")]);
        // (asked, suits)
        let table = [
            (mk(&[]), true),
            (mk(&[("region", "r")]), true),
            (mk(&[("zone", "a"), ("host", "h")]), true),
            (mk(&[("ZONE", "a")]), true),
            (mk(&[("zone", "b")]), false),
            (mk(&[("region", "r"), ("zone", "b")]), false),
            (mk(&[("other/zone", "a")]), false),
        ];
        for (asked, suits) in table {
            assert_eq!(place.suits(&asked), suits, "{asked}");
        }
        assert!(mk(&[]).suits(&mk(&[("zone", "b")])), "everywhere is there too");
    }

    #[test]
    fn who_is_there_reaches_it() {
        let node = mk(&[("zone", "a"), ("host", "h")]);
        assert!(node.reaches(&mk(&[("Zone", "a")])));
        assert!(node.reaches(&mk(&[])));
        assert!(!node.reaches(&mk(&[("zone", "b")])));
        assert!(!mk(&[]).reaches(&mk(&[("zone", "a")])));
    }
}
