//! The store: objects by key, one revision for all kinds as in etcd, and a window of changes per kind.
//!
//! Invariants: each write takes the next revision and adds one change; stored objects are never modified.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use tokio::sync::broadcast;

use super::object::Object;
use super::resource::Resource;
use super::selector::field_value;
use super::status::Status;
use super::stored::{Change, Key, Stored, key};
use super::watch_cache::{Compacted, WatchCache};

/// All tables.
#[derive(Debug)]
pub(crate) struct Store {
    revision: u64,
    tables: Vec<Table>,
}

/// A function that is called with each change of a table.
pub(crate) struct ChangeObserver(pub(crate) Box<dyn Fn(&Change) + Send>);

/// The objects of one kind.
#[derive(Debug)]
pub(crate) struct Table {
    objects: BTreeMap<Key, Arc<Stored>>,
    cache: WatchCache,
    /// Field by which changes are indexed, like the indexers of kube-apiserver's watch cache.
    indexed_field: Option<&'static str>,
    /// The keys of the objects with each value of that field.
    keys: BTreeMap<String, BTreeSet<Key>>,
    /// A window of the changes with each value of that field that has watches.
    parts: BTreeMap<String, WatchCache>,
    observer: Option<ChangeObserver>,
}

impl fmt::Debug for ChangeObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChangeObserver")
    }
}

// === impl Store ===

impl Store {
    /// Tables with their indexed fields; each keeps `window` changes.
    pub(crate) fn new(indexed_fields: impl IntoIterator<Item = Option<&'static str>>, window: usize) -> Self {
        let table = |indexed_field| Table {
            objects: BTreeMap::new(),
            cache: WatchCache::new(window),
            indexed_field,
            keys: BTreeMap::new(),
            parts: BTreeMap::new(),
            observer: None,
        };
        Self {
            // etcd's first revision is 1.
            revision: 1,
            tables: indexed_fields.into_iter().map(table).collect(),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// The object with a name.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub(crate) fn existing(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Arc<Stored>, Status> {
        let found = self.table(resource.table()).get(&key(namespace, name));
        found.cloned().ok_or_else(|| Status::not_found(resource, name))
    }

    pub(crate) fn table(&self, number: usize) -> &Table {
        self.tables.get(number).expect("a table's number must exist")
    }

    /// Calls `observer` with each change of a table from now on.
    pub(crate) fn observe(&mut self, table: usize, observer: ChangeObserver) {
        self.table_mut(table).observer = Some(observer);
    }

    fn table_mut(&mut self, number: usize) -> &mut Table {
        self.tables.get_mut(number).expect("a table's number must exist")
    }

    /// Stores a new object or a new version of one.
    pub(crate) fn put(&mut self, table: usize, key: &str, object: Object) -> Arc<Stored> {
        self.revision += 1;
        let revision = self.revision;
        let table = self.table_mut(table);
        let key: Key = key.into();
        let mut after = Stored::new(object, revision);
        after.is_first = !table.objects.contains_key(&key);
        let after = Arc::new(after);
        let before = table.objects.insert(Arc::clone(&key), Arc::clone(&after));
        table.record(Change {
            key,
            revision,
            before,
            after: Arc::clone(&after),
            is_deletion: false,
        });
        after
    }

    /// Removes an object and returns its last version at the deletion's revision.
    pub(crate) fn delete(&mut self, table: usize, key: &str) -> Option<Arc<Stored>> {
        let table = self.tables.get_mut(table).expect("a table's number must exist");
        let (key, before) = table.objects.remove_entry(key)?;
        self.revision += 1;
        let after = Arc::new(before.at_revision(self.revision));
        table.record(Change {
            key,
            revision: self.revision,
            before: Some(before),
            after: Arc::clone(&after),
            is_deletion: true,
        });
        Some(after)
    }

    /// Removes all changes so far, like etcd's compaction.
    pub(crate) fn compact(&mut self) {
        for table in &mut self.tables {
            for change in table.cache.compact(self.revision) {
                change.after.keep_json();
            }
            for part in table.parts.values_mut() {
                drop(part.compact(self.revision));
            }
        }
    }

    /// A receiver that gets a message after each change of a table; with a value of the indexed field, only after changes
    /// of objects that have or had this value.
    pub(crate) fn subscribe(&mut self, table: usize, value: Option<&str>) -> broadcast::Receiver<()> {
        let table = self.table_mut(table);
        let Some(value) = value.filter(|_| table.indexed_field.is_some()) else {
            return table.cache.subscribe();
        };
        // Earlier changes are read from the whole window.
        let newest = table.cache.newest();
        let part = || WatchCache::part_after(newest);
        let part = table.parts.entry(value.to_owned()).or_insert_with(part);
        part.subscribe()
    }
}

// === impl Table ===

impl Table {
    fn record(&mut self, change: Change) {
        if let Some(field) = self.indexed_field {
            self.index(field, &change);
        }
        if let Some(ChangeObserver(observe)) = &self.observer {
            observe(&change);
        }
        // An object whose last reference the window held has been replaced or deleted, and is dropped.
        if let Some(forgotten) = self.cache.push(change)
            && Arc::strong_count(&forgotten.after) > 1
        {
            forgotten.after.keep_json();
        }
    }

    fn index(&mut self, field: &str, change: &Change) {
        let value = |stored: &Arc<Stored>| field_value(&stored.object(), field);
        let before = change.before.as_ref().map(value);
        let after = Some(value(&change.after)).filter(|_| !change.is_deletion);
        for value in before.iter().chain(after.iter().filter(|_| after != before)) {
            match self.parts.get_mut(value) {
                Some(part) if part.is_watched() => drop(part.push(change.clone())),
                Some(_) => drop(self.parts.remove(value)),
                None => {}
            }
        }
        if before == after {
            return;
        }
        if let Some(before) = before
            && let Entry::Occupied(mut keys) = self.keys.entry(before)
        {
            keys.get_mut().remove(&change.key);
            if keys.get().is_empty() {
                keys.remove();
            }
        }
        if let Some(after) = after {
            self.keys
                .entry(after)
                .or_default()
                .insert(Arc::clone(&change.key));
        }
    }

    /// Field by which changes are indexed.
    pub(crate) fn indexed_field(&self) -> Option<&'static str> {
        self.indexed_field
    }

    /// Changes after `revision`, oldest first; changes with other values of the indexed field may be omitted.
    pub(crate) fn changes_after(
        &self,
        revision: u64,
        value: Option<&str>,
    ) -> Result<impl Iterator<Item = &Change>, Compacted> {
        let part = value.and_then(|value| self.parts.get(value));
        match part.map(|part| part.changes_after(revision)) {
            Some(Ok(changes)) => Ok(changes),
            Some(Err(_)) | None => self.cache.changes_after(revision),
        }
    }

    /// Revision of the newest change.
    pub(crate) fn newest(&self) -> u64 {
        self.cache.newest()
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Objects whose key begins with `prefix`, in order, starting at `start`.
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

    /// Number of objects with this value of the indexed field.
    pub(crate) fn count_with(&self, value: &str) -> usize {
        self.keys.get(value).map_or(0, BTreeSet::len)
    }

    /// The objects of [`Self::range`] with this value of the indexed field.
    pub(crate) fn range_with<'a>(
        &'a self,
        value: &str,
        prefix: &'a str,
        start: &str,
    ) -> impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> + use<'a> {
        let from = if start > prefix { start } else { prefix };
        let keys = self.keys.get(value).map(|keys| keys.range(Key::from(from)..));
        keys.into_iter()
            .flatten()
            .take_while(move |key| key.starts_with(prefix))
            .filter_map(|key| self.objects.get_key_value(key))
    }

    /// The objects of [`Self::range`] as they were at `revision`. Reads these and the changes since, not the whole table.
    pub(crate) fn range_at<'a>(
        &'a self,
        revision: u64,
        prefix: &'a str,
        start: &str,
    ) -> Result<impl Iterator<Item = (&'a Key, &'a Arc<Stored>)> + use<'a>, Compacted> {
        let mut before: BTreeMap<&Key, Option<&Arc<Stored>>> = BTreeMap::new();
        for change in self.cache.changes_back_to(revision)? {
            if change.key.starts_with(prefix) && change.key.as_ref() >= start {
                before.insert(&change.key, change.before.as_ref());
            }
        }
        let mut before = before.into_iter().peekable();
        let mut present = self.range(prefix, start).peekable();
        let next = move || {
            loop {
                let Some((changed, _)) = before.peek() else {
                    return present.next();
                };
                if let Some(unchanged) = present.next_if(|(key, _)| key < changed) {
                    return Some(unchanged);
                }
                let (key, stored) = before.next()?;
                present.next_if(|(present, _)| *present == key);
                if let Some(stored) = stored {
                    return Some((key, stored));
                }
            }
        };
        Ok(std::iter::from_fn(next))
    }

    /// Whether the table has no changes after `revision`.
    pub(crate) fn is_unchanged_since(&self, revision: u64) -> bool {
        self.cache.newest() <= revision
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::sync::broadcast::error::TryRecvError;

    use super::super::object;
    use super::*;

    fn mk_pod(name: &str, node: &str) -> Object {
        let pod = json!({"metadata": {"name": name}, "spec": {"nodeName": node}});
        pod.as_object().unwrap().clone()
    }

    fn mk_object(name: &str, value: u32) -> Object {
        let object = json!({"metadata": {"name": name}, "value": value});
        object.as_object().unwrap().clone()
    }

    #[test]
    fn restores_the_objects_of_an_old_revision() {
        let mut store = Store::new([None], 10);
        store.put(0, "a", mk_object("a", 1));
        store.put(0, "d", mk_object("d", 1));
        let revision = store.put(0, "b", mk_object("b", 1)).revision;
        store.put(0, "a", mk_object("a", 2));
        store.delete(0, "b");
        store.put(0, "c", mk_object("c", 1));
        let objects = |prefix, start| -> Vec<(String, Value)> {
            let objects = store.table(0).range_at(revision, prefix, start).unwrap();
            objects
                .map(|(key, stored)| (key.to_string(), stored.object()["value"].clone()))
                .collect()
        };
        let [a, b, d] = ["a", "b", "d"].map(|key| (key.to_owned(), json!(1)));
        assert_eq!(objects("", ""), [a, b.clone(), d.clone()]);
        assert_eq!(objects("", "b"), [b.clone(), d]);
        assert_eq!(objects("b", ""), [b]);
    }

    #[test]
    fn forgets_changes_beyond_its_window() {
        let mut store = Store::new([None], 2);
        for value in 1..=4 {
            store.put(0, "a", mk_object("a", value));
        }
        let table = store.table(0);
        assert_eq!(table.changes_after(2, None).err(), Some(Compacted { oldest: 3 }));
        let revisions: Vec<u64> = table
            .changes_after(3, None)
            .unwrap()
            .map(|change| change.revision)
            .collect();
        assert_eq!(revisions, [4, 5]);
        assert!(table.range_at(2, "", "").is_err());
    }

    #[test]
    fn keeps_only_json_of_objects_outside_the_window() {
        let mut store = Store::new([None], 1);
        store.put(0, "a", mk_object("a", 1));
        store.put(0, "b", mk_object("b", 1));
        let [a, b] = ["a", "b"].map(|key| store.table(0).get(key).unwrap());
        assert!(!a.is_parsed() && b.is_parsed());
        let mut expected = mk_object("a", 1);
        object::set(&mut expected, "/metadata/resourceVersion", "2");
        assert_eq!(*a.object(), expected);
    }

    #[test]
    fn orders_keys_as_etcd_does() {
        let mut store = Store::new([None], 2);
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

    #[test]
    fn lists_objects_by_the_indexed_field() {
        let mut store = Store::new([Some("spec.nodeName")], 10);
        for (key, node) in [
            ("n/1", "a"),
            ("n/2", "b"),
            ("m/3", "a"),
            ("n/4", ""),
            ("n/5", "a"),
        ] {
            store.put(0, key, mk_pod(key, node));
        }
        store.put(0, "n/4", mk_pod("n/4", "a"));
        store.put(0, "n/2", mk_pod("n/2", "a"));
        store.put(0, "n/2", mk_pod("n/2", "c"));
        store.delete(0, "n/1");
        let keys = |node, prefix, start| -> Vec<String> {
            let table = store.table(0);
            let found = table.range_with(node, prefix, start);
            found.map(|(key, _)| key.to_string()).collect()
        };
        assert_eq!(keys("a", "", ""), ["m/3", "n/4", "n/5"]);
        assert_eq!(keys("a", "n/", ""), ["n/4", "n/5"]);
        assert_eq!(keys("a", "", "n/5"), ["n/5"]);
        assert_eq!(keys("c", "", ""), ["n/2"]);
        assert_eq!(["a", "b"].map(|node| store.table(0).count_with(node)), [3, 0]);
        assert!(keys("b", "", "").is_empty());
    }

    #[test]
    fn indexed_window_has_the_changes_of_its_value() {
        let mut store = Store::new([Some("spec.nodeName")], 10);
        store.put(0, "early", mk_pod("early", "a"));
        let mut changed = store.subscribe(0, Some("a"));
        let revisions_after = |store: &Store, revision| -> Vec<u64> {
            let changes = store.table(0).changes_after(revision, Some("a")).unwrap();
            changes.map(|change| change.revision).collect()
        };
        let revisions = |store: &Store| revisions_after(store, 2);
        assert_eq!(revisions_after(&store, 0), [2], "from the whole window");
        store.put(0, "other", mk_pod("other", "b"));
        assert!(changed.is_empty(), "a change on node b");
        store.put(0, "late", mk_pod("late", ""));
        store.put(0, "late", mk_pod("late", "a"));
        store.delete(0, "early");
        assert_eq!(revisions(&store), [5, 6]);
        assert!(
            changed
                .try_recv()
                .is_err_and(|error| matches!(error, TryRecvError::Lagged(_)))
        );
        drop(changed);
        store.put(0, "late", mk_pod("late", "b"));
        assert!(store.table(0).parts.is_empty(), "no watch of node a is left");
        assert_eq!(revisions(&store), [3, 4, 5, 6, 7], "those of all nodes");
    }
}
