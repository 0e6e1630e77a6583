//! A mutex per key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A lock for each key that is locked or waited for.
#[derive(Debug)]
pub(super) struct KeyedMutex<K>(Mutex<HashMap<K, Arc<AsyncMutex<()>>>>);

/// Unlocks the key when it is dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct KeyedGuard<'t, K: Eq + Hash> {
    mutex: &'t KeyedMutex<K>,
    key: K,
    lock: Arc<AsyncMutex<()>>,
    /// `None` while it waits for the lock.
    held: Option<OwnedMutexGuard<()>>,
}

// === impl KeyedMutex ===

impl<K: Eq + Hash + Clone> KeyedMutex<K> {
    /// Locks `key`.
    ///
    /// # Cancellation
    ///
    /// Safe: a waiter that is dropped leaves nothing behind.
    pub(super) async fn lock(&self, key: &K) -> KeyedGuard<'_, K> {
        let lock = self.locks().entry(key.clone()).or_default().clone();
        let mut guard = KeyedGuard {
            mutex: self,
            key: key.clone(),
            lock: lock.clone(),
            held: None,
        };
        guard.held = Some(lock.lock_owned().await);
        guard
    }
}

impl<K: Eq + Hash + Clone + Ord> KeyedMutex<K> {
    /// Locks two different keys in sorted order, so that two callers never deadlock.
    ///
    /// # Cancellation
    ///
    /// As with [`KeyedMutex::lock`].
    pub(super) async fn lock_both(&self, one: &K, other: &K) -> [KeyedGuard<'_, K>; 2] {
        if one < other {
            let one = self.lock(one).await;
            [one, self.lock(other).await]
        } else {
            let other = self.lock(other).await;
            [self.lock(one).await, other]
        }
    }
}

impl<K> KeyedMutex<K> {
    fn locks(&self) -> MutexGuard<'_, HashMap<K, Arc<AsyncMutex<()>>>> {
        // No panic leaves the map inconsistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

// === impl KeyedGuard ===

impl<K: Eq + Hash> Drop for KeyedGuard<'_, K> {
    fn drop(&mut self) {
        // The lock is free before its waiters are counted.
        self.held = None;
        let mut locks = self.mutex.locks();
        // Under the map's lock, so that the last of several guards sees that it is the last.
        self.lock = Arc::default();
        if locks
            .get(&self.key)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            locks.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn locks_a_key_for_one_at_a_time() {
        let mutex = KeyedMutex::default();
        let first = mutex.lock(&1).await;
        let other = mutex.lock(&2).now_or_never();
        assert!(other.is_some(), "another key is free");
        let mut second = std::pin::pin!(mutex.lock(&1));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn locks_of_two_keys_do_not_deadlock() {
        let mutex = KeyedMutex::default();
        let first = mutex.lock(&1).await;
        let mut both = std::pin::pin!(mutex.lock_both(&2, &1));
        assert!(both.as_mut().now_or_never().is_none());
        let mut crossed = std::pin::pin!(mutex.lock_both(&1, &2));
        assert!(crossed.as_mut().now_or_never().is_none());
        drop(first);
        let [two, one] = both.now_or_never().expect("both are free");
        assert_eq!((&two.key, &one.key), (&2, &1));
        assert!(crossed.as_mut().now_or_never().is_none());
        drop((two, one));
        assert!(crossed.now_or_never().is_some());
    }

    #[tokio::test]
    async fn keeps_nothing_of_unlocked_keys_and_dropped_waiters() {
        let mutex = KeyedMutex::default();
        let first = mutex.lock(&1).await;
        {
            let mut second = std::pin::pin!(mutex.lock(&1));
            assert!(second.as_mut().now_or_never().is_none());
        }
        assert_eq!(mutex.locks().len(), 1);
        drop(first);
        assert!(mutex.locks().is_empty());
        // A waiter that is dropped after it got the lock, and before it was polled.
        let first = mutex.lock(&1).await;
        {
            let mut second = std::pin::pin!(mutex.lock(&1));
            assert!(second.as_mut().now_or_never().is_none());
            drop(first);
        }
        assert!(mutex.locks().is_empty());
    }
}
