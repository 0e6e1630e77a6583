//! An index: the attachments of a volume, a node or a volume handle, or the CSINodes of a node id.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Pairs of an indexed value and the name of an object, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Indexer(BTreeSet<(Arc<str>, Arc<str>)>);

// === impl Indexer ===

impl Indexer {
    /// The objects of `value`, in the order of their names.
    pub(crate) fn get(&self, value: &str) -> impl Iterator<Item = &Arc<str>> + use<'_> {
        let value: Arc<str> = value.into();
        let first = (value.clone(), Arc::default());
        let pairs = self.0.range(first..).take_while(move |(of, _)| *of == value);
        pairs.map(|(_, name)| name)
    }

    /// The number of values that several objects have.
    pub(crate) fn shared(&self) -> usize {
        let mut values = self.0.iter().map(|(value, _)| value).peekable();
        let mut shared = 0;
        while let Some(value) = values.next() {
            let mut others = 0;
            while values.next_if_eq(&value).is_some() {
                others += 1;
            }
            shared += usize::from(others > 0);
        }
        shared
    }

    /// Moves an object from value `old` to value `new`. Adds it if `old` is `None`; removes it if `new` is `None`.
    pub(crate) fn update(&mut self, old: Option<&Arc<str>>, new: Option<&Arc<str>>, object: &Arc<str>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.0.remove(&(old.clone(), object.clone()));
        }
        if let Some(new) = new {
            self.0.insert((new.clone(), object.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_values_of_several_objects() {
        let mut index = Indexer::default();
        for (value, object, shared) in [
            ("1", "a", 0),
            ("2", "b", 0),
            ("1", "c", 1),
            ("1", "d", 1),
            ("2", "e", 2),
        ] {
            index.update(None, Some(&value.into()), &object.into());
            assert_eq!(index.shared(), shared, "{object}");
        }
    }

    #[test]
    fn returns_sorted_names_of_one_value() {
        let mut index = Indexer::default();
        let [pv, pv2, a, b, c, x]: [Arc<str>; 6] = ["pv", "pv2", "a", "b", "c", "x"].map(Arc::from);
        let names = |index: &Indexer| -> Vec<Arc<str>> { index.get("pv").cloned().collect() };
        index.update(None, Some(&pv2), &x);
        assert_eq!(names(&index), []);
        for (insert, want) in [
            (&b, vec![&b]),
            (&b, vec![&b]),
            (&a, vec![&a, &b]),
            (&c, vec![&a, &b, &c]),
        ] {
            index.update(None, Some(&pv), insert);
            let want: Vec<_> = want.into_iter().cloned().collect();
            assert_eq!(names(&index), want);
        }
        for (remove, want) in [(&x, 3), (&a, 2), (&b, 1), (&b, 1), (&c, 0), (&c, 0)] {
            index.update(Some(&pv), None, remove);
            assert_eq!(names(&index).len(), want, "{remove}");
        }
        index.update(Some(&pv2), Some(&pv), &x);
        assert_eq!(names(&index), std::slice::from_ref(&x));
        index.update(Some(&pv), None, &x);
        assert!(index.0.is_empty());
    }
}
