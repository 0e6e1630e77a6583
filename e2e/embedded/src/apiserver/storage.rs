//! The store: objects by key, one revision for all kinds as in etcd, and a window of changes per kind.
//!
//! Invariants: each write takes the next revision and adds one change; the log of a table has its changes in the
//! order of their revisions, without gaps since `compacted`; stored objects are never modified.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::sync::broadcast;

use super::object::{self, Object};

/// Key of an object: `namespace/name`, or the name of an object without namespace. Ordered as in etcd.
pub(crate) type Key = Arc<str>;

/// A version of an object.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) object: Object,
    pub(crate) revision: u64,
    /// Whether nothing was stored under its key before.
    pub(crate) is_first: bool,
    json: OnceLock<Bytes>,
}

/// What a write did.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) key: Key,
    pub(crate) revision: u64,
    /// The version before, none for a creation.
    pub(crate) before: Option<Arc<Stored>>,
    /// The version after; for a deletion the last version under the deletion's revision.
    pub(crate) after: Arc<Stored>,
    pub(crate) is_deletion: bool,
}

/// All tables.
#[derive(Debug)]
pub(crate) struct Store {
    revision: u64,
    tables: Vec<Table>,
}

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table {
    objects: BTreeMap<Key, Arc<Stored>>,
    log: VecDeque<Change>,
    /// Changes up to this revision are forgotten.
    compacted: u64,
    /// How many changes are remembered.
    window: usize,
    /// Unlike a watch channel, it wakes its receivers in their order, so that a simulation repeats itself.
    changed: broadcast::Sender<()>,
}

/// The changes since a revision are not remembered any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    /// The oldest revision from which changes are known.
    pub(crate) oldest: u64,
}

// === impl Stored ===

impl Stored {
    fn new(mut object: Object, revision: u64) -> Self {
        object::set(&mut object, "/metadata/resourceVersion", revision.to_string());
        Self {
            object,
            revision,
            is_first: false,
            json: OnceLock::new(),
        }
    }

    /// An object that is not in the store: the result of a dry run, or one that was just removed.
    pub(crate) fn unsaved(object: Object) -> Self {
        Self {
            object,
            revision: 0,
            is_first: false,
            json: OnceLock::new(),
        }
    }

    /// The same object under another revision.
    pub(crate) fn at_revision(&self, revision: u64) -> Self {
        Self::new(self.object.clone(), revision)
    }

    /// The object as JSON, without `apiVersion` and `kind`; serialized once.
    pub(crate) fn json(&self) -> &Bytes {
        self.json.get_or_init(|| to_json(&self.object))
    }
}

/// Serializes an object.
pub(crate) fn to_json(object: &Object) -> Bytes {
    serde_json::to_vec(object)
        .expect("an object must be serializable")
        .into()
}

/// Key of an object of a table.
pub(crate) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() {
        name.to_owned()
    } else {
        format!("{namespace}/{name}")
    }
}

// === impl Store ===

impl Store {
    pub(crate) fn new(tables: usize, window: usize) -> Self {
        let table = || Table {
            objects: BTreeMap::new(),
            log: VecDeque::new(),
            compacted: 0,
            window,
            changed: broadcast::Sender::new(1),
        };
        Self {
            // etcd begins with revision 1.
            revision: 1,
            tables: (0..tables).map(|_| table()).collect(),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    pub(crate) fn table(&self, number: usize) -> &Table {
        self.tables.get(number).expect("a table's number must exist")
    }

    /// Stores a new object or a new version of one.
    pub(crate) fn put(&mut self, table: usize, key: &str, object: Object) -> Arc<Stored> {
        self.revision += 1;
        let table = self.tables.get_mut(table).expect("a table's number must exist");
        let key: Key = key.into();
        let mut after = Stored::new(object, self.revision);
        after.is_first = !table.objects.contains_key(&key);
        let after = Arc::new(after);
        let before = table.objects.insert(Arc::clone(&key), Arc::clone(&after));
        table.record(Change {
            key,
            revision: self.revision,
            before,
            after: Arc::clone(&after),
            is_deletion: false,
        });
        after
    }

    /// Removes an object and returns its last version, under the deletion's revision.
    pub(crate) fn delete(&mut self, table: usize, key: &str) -> Option<Arc<Stored>> {
        let table = self.tables.get_mut(table).expect("a table's number must exist");
        let (key, before) = table.objects.remove_entry(key)?;
        self.revision += 1;
        let after = Arc::new(Stored::new(before.object.clone(), self.revision));
        table.record(Change {
            key,
            revision: self.revision,
            before: Some(before),
            after: Arc::clone(&after),
            is_deletion: true,
        });
        Some(after)
    }

    /// Forgets all changes so far, as etcd's compaction does.
    pub(crate) fn compact(&mut self) {
        for table in &mut self.tables {
            table.log.clear();
            table.compacted = self.revision;
            table.notify();
        }
    }
}

// === impl Table ===

impl Table {
    fn record(&mut self, change: Change) {
        self.log.push_back(change);
        while self.log.len() > self.window {
            if let Some(forgotten) = self.log.pop_front() {
                self.compacted = forgotten.revision;
            }
        }
        self.notify();
    }

    fn notify(&self) {
        // It fails without watches.
        self.changed.send(()).ok();
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Objects whose key begins with `prefix`, in order, from `start` on.
    pub(crate) fn range<'a>(
        &'a self,
        prefix: &'a str,
        start: &str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> + use<'a> {
        let from: Key = if start > prefix {
            start.into()
        } else {
            prefix.into()
        };
        self.objects
            .range(from..)
            .take_while(move |(key, _)| key.starts_with(prefix))
    }

    /// The objects as they were at `revision`.
    pub(crate) fn at(&self, revision: u64) -> Result<BTreeMap<Key, Arc<Stored>>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        let mut objects = self.objects.clone();
        for change in self
            .log
            .iter()
            .rev()
            .take_while(|change| change.revision > revision)
        {
            match &change.before {
                Some(before) => objects.insert(Arc::clone(&change.key), Arc::clone(before)),
                None => objects.remove(&change.key),
            };
        }
        Ok(objects)
    }

    /// Whether nothing changed after `revision`.
    pub(crate) fn is_unchanged_since(&self, revision: u64) -> bool {
        self.log.back().map_or(self.compacted, |change| change.revision) <= revision
    }

    /// Changes after `revision`, oldest first.
    pub(crate) fn changes_after(&self, revision: u64) -> Result<impl Iterator<Item = &Change>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        let first = self.log.partition_point(|change| change.revision <= revision);
        Ok(self.log.range(first..))
    }

    /// A receiver that gets a message after each change.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<()> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mk_object(name: &str, value: u32) -> Object {
        let object = json!({"metadata": {"name": name}, "value": value});
        object.as_object().unwrap().clone()
    }

    #[test]
    fn restores_the_objects_of_an_old_revision() {
        let mut store = Store::new(1, 10);
        store.put(0, "a", mk_object("a", 1));
        let revision = store.put(0, "b", mk_object("b", 1)).revision;
        store.put(0, "a", mk_object("a", 2));
        store.delete(0, "b");
        store.put(0, "c", mk_object("c", 1));
        let objects = store.table(0).at(revision).unwrap();
        let values: Vec<_> = objects
            .values()
            .map(|stored| stored.object["value"].clone())
            .collect();
        assert_eq!(values, [json!(1), json!(1)]);
        assert_eq!(objects.keys().map(|key| &**key).collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn forgets_changes_beyond_its_window() {
        let mut store = Store::new(1, 2);
        for value in 1..=4 {
            store.put(0, "a", mk_object("a", value));
        }
        let table = store.table(0);
        assert_eq!(table.changes_after(2).err(), Some(Compacted { oldest: 3 }));
        let revisions: Vec<u64> = table
            .changes_after(3)
            .unwrap()
            .map(|change| change.revision)
            .collect();
        assert_eq!(revisions, [4, 5]);
        assert!(table.at(2).is_err());
    }

    #[test]
    fn orders_keys_as_etcd_does() {
        let mut store = Store::new(1, 2);
        for key in ["a/z", "a-b/a", "b/a"] {
            store.put(0, key, mk_object(key, 1));
        }
        let keys: Vec<_> = store
            .table(0)
            .range("", "")
            .map(|(key, _)| key.to_string())
            .collect();
        assert_eq!(keys, ["a-b/a", "a/z", "b/a"]);
        assert_eq!(store.table(0).range("a/", "").count(), 1);
    }
}
