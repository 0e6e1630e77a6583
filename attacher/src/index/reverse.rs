//! What refers to something, by that something.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Names of attachments by the name of something they refer to. What nothing refers to takes no memory.
#[derive(Debug, Default)]
pub(crate) struct Reverse(HashMap<Arc<str>, BTreeSet<Arc<str>>>);

// === impl Reverse ===

impl Reverse {
    /// Those that refer to it, in the order of their names.
    pub(crate) fn get(&self, referred: &str) -> impl ExactSizeIterator<Item = &Arc<str>> + use<'_> {
        static NOBODY: BTreeSet<Arc<str>> = BTreeSet::new();
        self.0.get(referred).unwrap_or(&NOBODY).iter()
    }

    /// From now on this attachment refers to it.
    pub(crate) fn insert(&mut self, referred: &Arc<str>, attachment: &Arc<str>) {
        self.0
            .entry(referred.clone())
            .or_default()
            .insert(attachment.clone());
    }

    /// From now on it does not.
    pub(crate) fn remove(&mut self, referred: &str, attachment: &str) {
        if let Some(names) = self.0.get_mut(referred) {
            names.remove(attachment);
            if names.is_empty() {
                self.0.remove(referred);
            }
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
