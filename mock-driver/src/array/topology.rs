//! Where things are: the segments that nodes and pools lie in, and what a caller may ask of a place.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A place, as topology keys and values. Keys are compared without regard to case, so they are kept
/// in lower case. Without any, it is everywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Segments(BTreeMap<String, String>);

/// Where a volume or snapshot is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requirement {
    /// It must be within reach of one of these; empty for anywhere.
    pub requisite: Vec<Segments>,
    /// In this order if there is a choice.
    pub preferred: Vec<Segments>,
}

// === impl Segments ===

impl Segments {
    /// The keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Whether it is everywhere.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a node at `self` reaches what lies in `place`.
    pub(crate) fn reaches(&self, place: &Self) -> bool {
        place.0.iter().all(|(key, value)| self.0.get(key) == Some(value))
    }

    /// Whether a caller who asks for `asked` may be given what lies in `self`.
    ///
    /// A caller may name fewer keys, as a region without a zone, or more, as the host; one that
    /// names only keys unknown here asks for another storage.
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
    /// Whether something in `place` fulfils it.
    pub(crate) fn admits(&self, place: &Segments) -> bool {
        self.requisite.is_empty() || self.requisite.iter().any(|asked| place.suits(asked))
    }

    /// The places asked for, the most wanted first.
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
