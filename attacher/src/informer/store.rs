//! The newest known state of all objects of one kind, by name.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::{Change, StoreDelta};
use crate::model::{Attachment, Node, Uid, Version, Volume};

pub(crate) trait Object {
    fn identity(&self) -> (&Arc<str>, &Uid, Version);
}

/// Objects of one kind: one object per name. An older version never replaces a newer one.
#[derive(Clone, Debug)]
pub(crate) struct Store<T> {
    objects: HashMap<Arc<str>, Arc<T>>,
    /// The objects of the running list so far.
    listed: Option<HashSet<Uid>>,
    writes: LocalWrites,
    /// One for each list that the reflector has announced and not begun, in order. There is more than one if a list failed
    /// while its `ReplaceStarted` was still queued.
    pending_lists: VecDeque<LocalWrites>,
}

/// Our writes that a list may not show: the API server answered them after the list was requested.
#[derive(Clone, Debug, Default)]
struct LocalWrites {
    /// Objects that we updated. Kept while the list runs.
    updated: HashSet<Uid>,
    /// Objects that are deleted, with their last version. Kept until the watch shows the deletion, or a later version.
    deleted: HashMap<Uid, Version>,
}

// === impl Store ===

impl<T: Object> Store<T> {
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<T>> {
        self.objects.get(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// All objects, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<T>> {
        self.objects.values()
    }

    /// Applies a change, and returns the deltas: none if the store has this version or a newer one.
    pub(crate) fn apply(&mut self, change: Change<T>) -> Vec<StoreDelta<T>> {
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
            Change::Applied(object) => {
                let (_, uid, version) = object.identity();
                // The object of a list replaces a newer version of ours: the API server's store may have been restored
                // from a backup.
                let replaces_newer = self.listed.is_some() && !self.writes.updated.contains(uid);
                if let Some(listed) = &mut self.listed {
                    listed.insert(uid.clone());
                }
                if let Some(last) = self.writes.deleted.get(uid) {
                    if version <= *last || *last == Version::UNKNOWN {
                        return Vec::new();
                    }
                    // The response was not the API server's, or about an older state.
                    self.writes.deleted.remove(uid);
                }
                self.put(object, replaces_newer)
            }
            Change::LocallyUpdated(object) => {
                let (name, uid, _) = object.identity();
                if self.listed.is_some() {
                    self.writes.updated.insert(uid.clone());
                }
                for writes in &mut self.pending_lists {
                    writes.updated.insert(uid.clone());
                }
                // We write to objects of the store only. If it is not here, it was deleted during the write.
                match self.objects.get(name) {
                    Some(existing) if existing.identity().1 == uid => self.put(object, false),
                    Some(_) | None => Vec::new(),
                }
            }
            Change::Deleted { name, uid } => {
                // The watch sends no older event about this object after its deletion.
                self.writes.deleted.remove(&uid);
                self.remove(name, &uid)
            }
            Change::LocallyDeleted { name, uid, version } => {
                let deltas = self.remove(name, &uid);
                let before = deltas.first().and_then(|delta| delta.before.as_ref());
                if let Some((_, _, known)) = before.map(|before| before.identity()) {
                    let last = version.unwrap_or(known);
                    for writes in &mut self.pending_lists {
                        writes.deleted.insert(uid.clone(), last);
                    }
                    self.writes.deleted.insert(uid, last);
                }
                deltas
            }
            Change::Replaced => self.remove_unlisted(),
        }
    }

    fn put(&mut self, object: T, replaces_newer: bool) -> Vec<StoreDelta<T>> {
        let (name, _, version) = object.identity();
        if let Some((_, _, known)) = self.objects.get(name).map(|existing| existing.identity()) {
            let is_stale = version == known || version < known && !replaces_newer;
            if is_stale && version != Version::UNKNOWN {
                return Vec::new();
            }
        }
        let name = name.clone();
        let after = Arc::new(object);
        vec![StoreDelta {
            before: self.objects.insert(name.clone(), after.clone()),
            after: Some(after),
            name,
        }]
    }

    fn remove(&mut self, name: Arc<str>, uid: &Uid) -> Vec<StoreDelta<T>> {
        match self.objects.get(&name) {
            Some(existing) if existing.identity().1 == uid => {
                let before = self.objects.remove(&name);
                let after = None;
                vec![StoreDelta { name, before, after }]
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// Its objects, and our writes that the watch does not show yet, in order.
    #[cfg(test)]
    pub(crate) fn digest(&self) -> impl std::fmt::Debug + use<'_, T>
    where
        T: std::fmt::Debug,
    {
        use std::collections::BTreeMap;
        let objects: BTreeMap<_, _> = self.objects.iter().collect();
        let deleted: BTreeMap<_, _> = self.writes.deleted.iter().collect();
        (objects, deleted)
    }

    /// Removes the objects that a complete list does not contain.
    fn remove_unlisted(&mut self) -> Vec<StoreDelta<T>> {
        let Some(listed) = self.listed.take() else {
            return Vec::new();
        };
        // An object that the list does not contain was deleted before it; no event about it can follow.
        self.writes.deleted.retain(|uid, _| listed.contains(uid));
        self.objects
            .extract_if(|_, object| !listed.contains(object.identity().1))
            .map(|(name, before)| StoreDelta {
                name,
                before: Some(before),
                after: None,
            })
            .collect()
    }
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self {
            objects: HashMap::new(),
            listed: None,
            writes: LocalWrites::default(),
            pending_lists: VecDeque::new(),
        }
    }
}

// === impl Object ===

macro_rules! object {
    ($kind:ty) => {
        impl Object for $kind {
            fn identity(&self) -> (&Arc<str>, &Uid, Version) {
                (&self.name, &self.uid, self.version)
            }
        }
    };
}

object!(Attachment);
object!(Volume);
object!(Node);
