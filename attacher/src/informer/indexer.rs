//! What refers to something, by that something.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, btree_set};
use std::sync::Arc;

/// Names of attachments by the name of something they refer to. What nothing refers to takes no memory, and
/// what one attachment refers to, as most volumes, takes no more than its name.
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
    /// Those that refer to it, in the order of their names.
    pub(crate) fn get(&self, referred: &str) -> impl ExactSizeIterator<Item = &Arc<str>> + use<'_> {
        match self.0.get(referred) {
            None => Iter::Few(None.into_iter()),
            Some(Names::One(name)) => Iter::Few(Some(name).into_iter()),
            Some(Names::Many(names)) => Iter::Many(names.iter()),
        }
    }

    /// From now on this attachment refers to it.
    pub(crate) fn insert(&mut self, referred: &Arc<str>, attachment: &Arc<str>) {
        match self.0.entry(referred.clone()) {
            Entry::Vacant(place) => {
                place.insert(Names::One(attachment.clone()));
            }
            Entry::Occupied(place) => place.into_mut().insert(attachment),
        }
    }

    /// From now on it does not.
    pub(crate) fn remove(&mut self, referred: &str, attachment: &str) {
        let is_last = match self.0.get_mut(referred) {
            None => false,
            Some(Names::One(name)) => **name == *attachment,
            Some(Names::Many(names)) => {
                names.remove(attachment);
                names.is_empty()
            }
        };
        if is_last {
            self.0.remove(referred);
        }
    }

    /// From now on it refers to something else, or to nothing.
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
        let mut reverse = Indexer::default();
        let [pv, a, b, c]: [Arc<str>; 4] = ["pv", "a", "b", "c"].map(Arc::from);
        let names = |reverse: &Indexer| -> Vec<Arc<str>> { reverse.get("pv").cloned().collect() };
        assert_eq!(reverse.get("pv").len(), 0);
        for (insert, want) in [
            (&b, vec![&b]),
            (&b, vec![&b]),
            (&a, vec![&a, &b]),
            (&c, vec![&a, &b, &c]),
        ] {
            reverse.insert(&pv, insert);
            let want: Vec<_> = want.into_iter().cloned().collect();
            assert_eq!(names(&reverse), want);
            assert_eq!(reverse.get("pv").len(), want.len());
        }
        for (remove, want) in [("x", 3), ("a", 2), ("b", 1), ("b", 1), ("c", 0), ("c", 0)] {
            reverse.remove("pv", remove);
            assert_eq!(names(&reverse).len(), want, "{remove}");
        }
        assert!(reverse.0.is_empty());
        reverse.insert(&pv, &a);
        reverse.remove("pv", "b");
        assert_eq!(names(&reverse), std::slice::from_ref(&a));
        reverse.replace(Some(&pv), None, &a);
        assert!(reverse.0.is_empty());
    }
}
