//! Shared informers: one watch per kind, a store that all controllers read, and a stream of changes for each.
//!
//! As in client-go, the store is updated before subscribers receive a change.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt, pin_mut};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{SetOnce, mpsc};
use tokio::time::{Interval, MissedTickBehavior, interval};

/// Namespace (empty for cluster-scoped kinds) and name.
pub(crate) type Key = (String, String);

/// A change of an object.
#[derive(Clone, Debug)]
pub(crate) enum Change<K> {
    Applied { old: Option<Arc<K>>, new: Arc<K> },
    Deleted(Arc<K>),
}

/// Objects of one kind, kept up to date by [`Informer::run`].
#[derive(Debug)]
pub(crate) struct Informer<K> {
    shared: Arc<Shared<K>>,
}

#[derive(Debug)]
struct Shared<K> {
    store: Mutex<BTreeMap<Key, Arc<K>>>,
    /// Unbounded as client-go's listeners are: a slow subscriber must not hold back the store.
    subscribers: Mutex<Vec<mpsc::UnboundedSender<Change<K>>>>,
    /// Wakes waiters in FIFO order. A `watch` channel wakes them in random order, so a run would not be repeatable from its
    /// seed.
    synced: SetOnce<()>,
}

/// Changes of objects, and the times of resyncs.
#[derive(Debug)]
pub(crate) struct Resync<K> {
    changes: mpsc::UnboundedReceiver<Change<K>>,
    ticks: Interval,
}

/// Exponential backoff without jitter: a run must be repeatable from its seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchBackoff {
    next: Duration,
}

// === impl Change ===

impl<K: Resource> Change<K> {
    /// The newest state of the object.
    pub(crate) fn object(&self) -> &Arc<K> {
        match self {
            Self::Applied { new: object, .. } | Self::Deleted(object) => object,
        }
    }

    /// The deleted object, if an interrupted watch reports its deletion and the creation of `new` under its name as an
    /// update.
    pub(crate) fn replaced(&self) -> Option<&Arc<K>> {
        match self {
            Self::Applied { old: Some(old), new } if old.meta().uid != new.meta().uid => Some(old),
            Self::Applied { .. } | Self::Deleted(_) => None,
        }
    }
}

// === impl Resync ===

impl<K> Resync<K> {
    /// The first resync is due at once.
    pub(crate) fn new(changes: mpsc::UnboundedReceiver<Change<K>>, period: Duration) -> Self {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { changes, ticks }
    }

    /// The next change; `None` if there is none and all objects are to be synced again.
    pub(crate) async fn next(&mut self) -> Option<Change<K>> {
        tokio::select! {
            biased;
            Some(change) = self.changes.recv() => Some(change),
            _ = self.ticks.tick() => None,
        }
    }
}

// === impl Informer ===

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
        }
    }
}

impl<K> Default for Informer<K> {
    fn default() -> Self {
        Self {
            shared: Arc::new(Shared {
                store: Mutex::default(),
                subscribers: Mutex::default(),
                synced: SetOnce::new(),
            }),
        }
    }
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// A receiver of all further changes; subscribe before [`Informer::run`] to receive the initial objects,
    /// too.
    pub(crate) fn subscribe(&self) -> mpsc::UnboundedReceiver<Change<K>> {
        let (tx, rx) = mpsc::unbounded_channel();
        lock(&self.shared.subscribers).push(tx);
        rx
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let key = (namespace.to_owned(), name.to_owned());
        lock(&self.shared.store).get(&key).cloned()
    }

    pub(crate) fn list(&self) -> Vec<Arc<K>> {
        lock(&self.shared.store).values().cloned().collect()
    }

    /// Waits until the first list is complete.
    pub(crate) async fn wait_for_sync(&self) {
        self.shared.synced.wait().await;
    }

    /// Lists and watches until the future is dropped.
    pub(crate) async fn run(self, api: Api<K>) {
        self.run_with_transform(api, |_| {}).await;
    }

    /// Lists and watches until the future is dropped. Applies `transform` to each object before it is stored, like client-go's
    /// `SetTransform`.
    pub(crate) async fn run_with_transform(self, api: Api<K>, transform: fn(&mut K)) {
        let events = watcher(api, watcher::Config::default())
            .backoff(WatchBackoff::default())
            .modify(transform);
        pin_mut!(events);
        let mut listed = BTreeSet::new();
        while let Some(event) = events.next().await {
            match event {
                Ok(Event::Init) => listed.clear(),
                Ok(Event::InitApply(object)) => {
                    listed.insert(key_of(&object));
                    self.apply(object);
                }
                Ok(Event::InitDone) => {
                    self.keep_only(&listed);
                    // Already set after a relist.
                    self.shared.synced.set(()).ok();
                }
                Ok(Event::Apply(object)) => self.apply(object),
                Ok(Event::Delete(object)) => self.delete(&key_of(&object), Some(object)),
                Err(error) => tracing::debug!(kind = %K::kind(&()), %error, "watch failed"),
            }
        }
    }

    fn apply(&self, object: K) {
        let new = Arc::new(object);
        let old = lock(&self.shared.store).insert(key_of(&*new), new.clone());
        let same = old
            .as_ref()
            .is_some_and(|old| old.meta().resource_version == new.meta().resource_version);
        if !same {
            self.notify(&Change::Applied { old, new });
        }
    }

    fn delete(&self, key: &Key, last: Option<K>) {
        let known = lock(&self.shared.store).remove(key);
        if let Some(object) = last.map(Arc::new).or(known) {
            self.notify(&Change::Deleted(object));
        }
    }

    fn keep_only(&self, listed: &BTreeSet<Key>) {
        let gone: Vec<Key> = lock(&self.shared.store)
            .keys()
            .filter(|key| !listed.contains(*key))
            .cloned()
            .collect();
        for key in gone {
            self.delete(&key, None);
        }
    }

    fn notify(&self, change: &Change<K>) {
        lock(&self.shared.subscribers).retain(|subscriber| subscriber.send(change.clone()).is_ok());
    }
}

// === impl WatchBackoff ===

impl Default for WatchBackoff {
    fn default() -> Self {
        Self {
            next: Duration::from_millis(800),
        }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = self.next;
        self.next = (delay * 2).min(Duration::from_secs(30));
        Some(delay)
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        *self = Self::default();
    }
}

// === functions ===

/// Namespace and name of an object.
pub(crate) fn key_of<K: Resource>(object: &K) -> Key {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

pub(crate) fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    let mut finalizers = meta.finalizers.iter().flatten();
    finalizers.any(|found| found == finalizer)
}

/// A panic cannot leave inconsistent values behind: each critical section is one map operation.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
