//! The newest known state of all objects of one kind, by name.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{Change, StoreDelta};
use crate::model::{Attachment, Node, Uid, Version, Volume};

/// An object of the store.
pub(super) trait Item {
    fn name(&self) -> &Arc<str>;
    fn uid(&self) -> &Uid;
    fn version(&self) -> Version;
}

/// Objects of one kind: one object per name. An older version never replaces a newer one.
#[derive(Debug)]
pub(super) struct Store<T> {
    items: HashMap<Arc<str>, Arc<T>>,
    /// The objects of the running list so far.
    listed: Option<HashSet<Uid>>,
    writes: LocalWrites,
    /// One for each list that the reflector has announced and not begun, in order. There is more than one if a list failed
    /// while its `ReplaceStarted` was still queued.
    pending_lists: VecDeque<LocalWrites>,
}

/// Our writes that a list may not show: the API server answered them after the list was requested.
#[derive(Debug, Default)]
struct LocalWrites {
    /// Objects that we updated. Kept while the list runs.
    updated: HashSet<Uid>,
    /// Objects that are deleted. Kept until the watch shows the deletion.
    deleted: HashSet<Uid>,
}

// === impl Store ===

impl<T: Item> Store<T> {
    pub(super) fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.items.get(name)
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.items.values()
    }

    pub(super) fn apply(&mut self, change: Change<T>) -> Vec<(Arc<str>, StoreDelta<T>)> {
        match change {
            Change::RelistStarting => {
                self.pending_lists.push_back(LocalWrites::default());
                Vec::new()
            }
            Change::ReplaceStarted => {
                self.listed = Some(HashSet::new());
                // A list is consistent as of its request: an object in it exists, even if an earlier response said
                // that it was deleted.
                self.writes = self.pending_lists.pop_front().unwrap_or_default();
                Vec::new()
            }
            Change::Applied(item) => {
                // The object of a list replaces a newer version of ours: the API server's store may have been restored
                // from a backup.
                let replaces_newer = self.listed.is_some() && !self.writes.updated.contains(item.uid());
                if let Some(listed) = &mut self.listed {
                    listed.insert(item.uid().clone());
                }
                let name = item.name().clone();
                let delta = if self.writes.deleted.contains(item.uid()) {
                    StoreDelta::Stale
                } else {
                    self.put(item, replaces_newer)
                };
                vec![(name, delta)]
            }
            Change::LocallyUpdated(item) => {
                let name = item.name().clone();
                let exists = self
                    .items
                    .get(&name)
                    .is_some_and(|existing| existing.uid() == item.uid());
                if self.listed.is_some() {
                    self.writes.updated.insert(item.uid().clone());
                }
                for writes in &mut self.pending_lists {
                    writes.updated.insert(item.uid().clone());
                }
                // We write to objects of the store only. If it is not here, it was deleted during the write.
                let delta = if exists {
                    self.put(item, false)
                } else {
                    StoreDelta::Stale
                };
                vec![(name, delta)]
            }
            Change::Deleted { name, uid } => {
                // The watch sends no older event about this object after its deletion.
                self.writes.deleted.remove(&uid);
                let delta = self.remove(&name, &uid);
                vec![(name, delta)]
            }
            Change::LocallyDeleted { name, uid } => {
                let delta = self.remove(&name, &uid);
                if matches!(delta, StoreDelta::Deleted { .. }) {
                    for writes in &mut self.pending_lists {
                        writes.deleted.insert(uid.clone());
                    }
                    self.writes.deleted.insert(uid);
                }
                vec![(name, delta)]
            }
            Change::Replaced => self.remove_unlisted(),
        }
    }

    fn put(&mut self, item: T, replaces_newer: bool) -> StoreDelta<T> {
        let name = item.name().clone();
        let is_stale = |existing: &T| {
            item.version() == existing.version() && item.version() != Version::UNKNOWN
                || !replaces_newer && item.version().is_stale_beside(existing.version())
        };
        match self.items.get(&name) {
            Some(existing) if is_stale(existing) => StoreDelta::Stale,
            Some(existing) if existing.uid() == item.uid() => {
                let before = existing.clone();
                self.items.insert(name, Arc::new(item));
                StoreDelta::Updated { before }
            }
            Some(_) | None => StoreDelta::Added {
                replaced: self.items.insert(name, Arc::new(item)),
            },
        }
    }

    fn remove(&mut self, name: &Arc<str>, uid: &Uid) -> StoreDelta<T> {
        match self.items.get(name) {
            Some(existing) if existing.uid() == uid => self
                .items
                .remove(name)
                .map_or(StoreDelta::Stale, |before| StoreDelta::Deleted { before }),
            Some(_) | None => StoreDelta::Stale,
        }
    }

    /// Removes the objects that a complete list does not contain.
    fn remove_unlisted(&mut self) -> Vec<(Arc<str>, StoreDelta<T>)> {
        let Some(listed) = self.listed.take() else {
            return Vec::new();
        };
        // An object that the list does not contain was deleted before it; no event about it can follow.
        self.writes.deleted.retain(|uid| listed.contains(uid));
        self.items
            .extract_if(|_, item| !listed.contains(item.uid()))
            .map(|(name, before)| (name, StoreDelta::Deleted { before }))
            .collect()
    }
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            items: HashMap::new(),
            listed: None,
            writes: LocalWrites::default(),
            pending_lists: VecDeque::new(),
        }
    }
}

// === impl Item ===

macro_rules! item {
    ($kind:ty) => {
        impl Item for $kind {
            fn name(&self) -> &Arc<str> {
                &self.name
            }

            fn uid(&self) -> &Uid {
                &self.uid
            }

            fn version(&self) -> Version {
                self.version
            }
        }
    };
}

item!(Attachment);
item!(Volume);
item!(Node);
