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

    /// Moves an attachment from value `old` to value `new`. Adds it if `old` is `None`; removes it if `new` is `None`.
    pub(crate) fn update(&mut self, old: Option<&Arc<str>>, new: Option<&Arc<str>>, attachment: &Arc<str>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.0.remove(&(old.clone(), attachment.clone()));
        }
        if let Some(new) = new {
            self.0.insert((new.clone(), attachment.clone()));
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
