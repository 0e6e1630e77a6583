//! An index: the attachments of a volume, a node or a volume handle.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, btree_set};
use std::sync::Arc;

/// Names of attachments by an indexed value. Most volumes have one attachment, so one name needs no set.
#[derive(Debug, Default)]
pub(crate) struct Indexer(HashMap<Arc<str>, Names>);

/// One name or more.
#[derive(Debug)]
enum Names {
    One(Arc<str>),
    Many(BTreeSet<Arc<str>>),
}

/// Names in order.
#[derive(Debug)]
enum Iter<'a> {
    Few(std::option::IntoIter<&'a Arc<str>>),
    Many(btree_set::Iter<'a, Arc<str>>),
}

// === impl Indexer ===

impl Indexer {
    /// The attachments of `value`, in the order of their names.
    pub(crate) fn get(&self, value: &str) -> impl ExactSizeIterator<Item = &Arc<str>> + use<'_> {
        match self.0.get(value) {
            None => Iter::Few(None.into_iter()),
            Some(Names::One(name)) => Iter::Few(Some(name).into_iter()),
            Some(Names::Many(names)) => Iter::Many(names.iter()),
        }
    }

    /// Adds an attachment of `value`.
    pub(crate) fn insert(&mut self, value: &Arc<str>, attachment: &Arc<str>) {
        match self.0.entry(value.clone()) {
            Entry::Vacant(place) => {
                place.insert(Names::One(attachment.clone()));
            }
            Entry::Occupied(place) => place.into_mut().insert(attachment),
        }
    }

    /// Removes an attachment of `value`.
    pub(crate) fn remove(&mut self, value: &str, attachment: &str) {
        let is_last = match self.0.get_mut(value) {
            None => false,
            Some(Names::One(name)) => **name == *attachment,
            Some(Names::Many(names)) => {
                names.remove(attachment);
                names.is_empty()
            }
        };
        if is_last {
            self.0.remove(value);
        }
    }

    /// Moves an attachment from value `old` to value `new`.
    pub(super) fn replace(&mut self, old: Option<&Arc<str>>, new: Option<&Arc<str>>, attachment: &Arc<str>) {
        if let Some(old) = old {
            self.remove(old, attachment);
        }
        if let Some(new) = new {
            self.insert(new, attachment);
        }
    }
}

// === impl Names ===

impl Names {
    fn insert(&mut self, name: &Arc<str>) {
        match self {
            Self::One(only) if only == name => {}
            Self::One(only) => *self = Self::Many(BTreeSet::from([only.clone(), name.clone()])),
            Self::Many(names) => {
                names.insert(name.clone());
            }
        }
    }
}

// === impl Iter ===

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Arc<str>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Few(names) => names.next(),
            Self::Many(names) => names.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match self {
            Self::Few(names) => names.size_hint(),
            Self::Many(names) => names.size_hint(),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_sorted_names_and_drops_empty_entries() {
        let mut index = Indexer::default();
        let [pv, a, b, c]: [Arc<str>; 4] = ["pv", "a", "b", "c"].map(Arc::from);
        let names = |index: &Indexer| -> Vec<Arc<str>> { index.get("pv").cloned().collect() };
        assert_eq!(index.get("pv").len(), 0);
        for (insert, want) in [
            (&b, vec![&b]),
            (&b, vec![&b]),
            (&a, vec![&a, &b]),
            (&c, vec![&a, &b, &c]),
        ] {
            index.insert(&pv, insert);
            let want: Vec<_> = want.into_iter().cloned().collect();
            assert_eq!(names(&index), want);
            assert_eq!(index.get("pv").len(), want.len());
        }
        for (remove, want) in [("x", 3), ("a", 2), ("b", 1), ("b", 1), ("c", 0), ("c", 0)] {
            index.remove("pv", remove);
            assert_eq!(names(&index).len(), want, "{remove}");
        }
        assert!(index.0.is_empty());
        index.insert(&pv, &a);
        index.remove("pv", "b");
        assert_eq!(names(&index), std::slice::from_ref(&a));
        index.replace(Some(&pv), None, &a);
        assert!(index.0.is_empty());
    }
}
