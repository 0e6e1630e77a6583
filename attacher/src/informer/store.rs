//! All known objects of one kind, by name.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{Change, StoreDelta};
use crate::model::{Attachment, Node, Uid, Version, Volume};

/// What a shelf must know of the objects on it.
pub(super) trait Item {
    fn name(&self) -> &Arc<str>;
    fn uid(&self) -> &Uid;
    fn version(&self) -> Version;
}

/// Objects of one kind. At most one object a name, and never an older version over a newer one.
#[derive(Debug)]
pub(super) struct Store<T> {
    items: HashMap<Arc<str>, Arc<T>>,
    /// While a list is under way: the objects that it named.
    listed: Option<HashSet<Uid>>,
    told: Told,
    /// For each list that was announced and has not begun, in order: what was told since, of which it may be ignorant.
    /// More than one, if a list failed while its beginning was still queued.
    told_ahead: VecDeque<Told>,
}

/// What the API server's answers to our writes told.
#[derive(Debug, Default)]
struct Told {
    /// While a list is under way: objects that we wrote since it was asked for, of which it may be ignorant.
    written: HashSet<Uid>,
    /// Objects that are gone, before the watch said so.
    departed: HashSet<Uid>,
}

/// What became of an object that was put on the shelf.
pub(super) enum PutResult<T> {
    Stale,
    New,
    InsteadOf(Arc<T>),
    Newer(Arc<T>),
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

    pub(super) fn change(&mut self, change: Change<T>) -> Vec<(Arc<str>, StoreDelta<T>)> {
        match change {
            Change::RelistStarting => {
                self.told_ahead.push_back(Told::default());
                Vec::new()
            }
            Change::ReplaceStarted => {
                self.listed = Some(HashSet::new());
                // A list is as new as its request, so what it names is there, whatever we were told before.
                self.told = self.told_ahead.pop_front().unwrap_or_default();
                Vec::new()
            }
            Change::Applied(item) => {
                // A list's word counts even if it is of a lower version than ours: the API server's
                // store was restored from a backup.
                let counts = self.listed.is_some() && !self.told.written.contains(item.uid());
                if let Some(listed) = &mut self.listed {
                    listed.insert(item.uid().clone());
                }
                let name = item.name().clone();
                let departed = self.told.departed.contains(item.uid());
                let placed = if departed {
                    PutResult::Stale
                } else {
                    self.put(item, counts)
                };
                vec![(name, StoreDelta::from_placed(placed))]
            }
            Change::LocallyUpdated(item) => {
                // We only write to what we know. If it is not here, it went while we wrote.
                let name = item.name().clone();
                let known = self
                    .items
                    .get(&name)
                    .is_some_and(|known| known.uid() == item.uid());
                if self.listed.is_some() {
                    self.told.written.insert(item.uid().clone());
                }
                for ahead in &mut self.told_ahead {
                    ahead.written.insert(item.uid().clone());
                }
                let placed = if known {
                    self.put(item, false)
                } else {
                    PutResult::Stale
                };
                vec![(name, StoreDelta::from_placed(placed))]
            }
            Change::Deleted { name, uid } => {
                // The watch has caught up: nothing older about this object can follow.
                self.told.departed.remove(&uid);
                let effect = self.take(&name, &uid);
                vec![(name, effect)]
            }
            Change::LocallyDeleted { name, uid } => {
                let effect = self.take(&name, &uid);
                if matches!(effect, StoreDelta::Gone { .. }) {
                    for ahead in &mut self.told_ahead {
                        ahead.departed.insert(uid.clone());
                    }
                    self.told.departed.insert(uid);
                }
                vec![(name, effect)]
            }
            Change::Replaced => self.sweep(),
        }
    }

    fn put(&mut self, item: T, whatever_its_version: bool) -> PutResult<T> {
        let name = item.name().clone();
        let is_stale = |known: &T| {
            item.version() == known.version() && item.version() != Version::UNKNOWN
                || !whatever_its_version && item.version().is_stale_beside(known.version())
        };
        match self.items.get(&name) {
            Some(known) if is_stale(known) => PutResult::Stale,
            Some(known) if known.uid() == item.uid() => {
                let before = known.clone();
                self.items.insert(name, Arc::new(item));
                PutResult::Newer(before)
            }
            Some(_) | None => self
                .items
                .insert(name, Arc::new(item))
                .map_or(PutResult::New, PutResult::InsteadOf),
        }
    }

    fn take(&mut self, name: &Arc<str>, uid: &Uid) -> StoreDelta<T> {
        match self.items.get(name) {
            Some(known) if known.uid() == uid => self
                .items
                .remove(name)
                .map_or(StoreDelta::Stale, |before| StoreDelta::Gone { before }),
            Some(_) | None => StoreDelta::Stale,
        }
    }

    /// Drops what a completed list did not name.
    fn sweep(&mut self) -> Vec<(Arc<str>, StoreDelta<T>)> {
        let Some(listed) = self.listed.take() else {
            return Vec::new();
        };
        // What the list did not name was gone before it was made; no event about it can follow.
        self.told.departed.retain(|uid| listed.contains(uid));
        self.items
            .extract_if(|_, item| !listed.contains(item.uid()))
            .map(|(name, before)| (name, StoreDelta::Gone { before }))
            .collect()
    }
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            items: HashMap::new(),
            listed: None,
            told: Told::default(),
            told_ahead: VecDeque::new(),
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
