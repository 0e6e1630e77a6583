//! An index: the attachments of a volume, a node or a volume handle.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Pairs of an indexed value and the name of an attachment, in order.
#[derive(Debug, Default)]
pub(crate) struct Indexer(BTreeSet<(Arc<str>, Arc<str>)>);

// === impl Indexer ===

impl Indexer {
    /// The attachments of `value`, in the order of their names.
    pub(crate) fn get(&self, value: &str) -> impl Iterator<Item = &Arc<str>> + use<'_> {
        let value: Arc<str> = value.into();
        let first = (value.clone(), Arc::default());
        let pairs = self.0.range(first..).take_while(move |(of, _)| *of == value);
        pairs.map(|(_, name)| name)
    }

    /// Adds an attachment of `value`.
    pub(crate) fn insert(&mut self, value: &Arc<str>, attachment: &Arc<str>) {
        self.0.insert((value.clone(), attachment.clone()));
    }

    /// Removes an attachment of `value`.
    pub(crate) fn remove(&mut self, value: &Arc<str>, attachment: &Arc<str>) {
        self.0.remove(&(value.clone(), attachment.clone()));
    }

    /// Moves an attachment from value `old` to value `new`.
    pub(super) fn replace(&mut self, old: Option<&Arc<str>>, new: Option<&Arc<str>>, attachment: &Arc<str>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.remove(old, attachment);
        }
        if let Some(new) = new {
            self.insert(new, attachment);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_sorted_names_of_one_value() {
        let mut index = Indexer::default();
        let [pv, pv2, a, b, c, x]: [Arc<str>; 6] = ["pv", "pv2", "a", "b", "c", "x"].map(Arc::from);
        let names = |index: &Indexer| -> Vec<Arc<str>> { index.get("pv").cloned().collect() };
        index.insert(&pv2, &x);
        assert_eq!(names(&index), []);
        for (insert, want) in [
            (&b, vec![&b]),
            (&b, vec![&b]),
            (&a, vec![&a, &b]),
            (&c, vec![&a, &b, &c]),
        ] {
            index.insert(&pv, insert);
            let want: Vec<_> = want.into_iter().cloned().collect();
            assert_eq!(names(&index), want);
        }
        for (remove, want) in [(&x, 3), (&a, 2), (&b, 1), (&b, 1), (&c, 0), (&c, 0)] {
            index.remove(&pv, remove);
            assert_eq!(names(&index).len(), want, "{remove}");
        }
        index.replace(Some(&pv2), Some(&pv), &x);
        assert_eq!(names(&index), std::slice::from_ref(&x));
        index.replace(Some(&pv), None, &x);
        assert!(index.0.is_empty());
    }
}
