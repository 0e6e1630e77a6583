//! A mutex per key.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A lock per key. Guards and waiters own the lock; the map has weak references.
#[derive(Debug)]
pub(super) struct KeyedMutex<K>(Mutex<HashMap<K, Weak<AsyncMutex<()>>>>);

pub(super) type KeyedGuard = OwnedMutexGuard<()>;

// === impl KeyedMutex ===

impl<K: Eq + Hash + Clone> KeyedMutex<K> {
    /// Locks `key`. Waiters acquire the lock in FIFO order. One that locks several keys must do so in their order.
    ///
    /// # Cancellation
    ///
    /// Safe: the next call removes the map entry of a dropped waiter.
    pub(super) async fn lock(&self, key: &K) -> KeyedGuard {
        let lock = {
            // No panic leaves the map inconsistent.
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // The lanes' concurrency bounds the number of keys, so this is cheap.
            locks.retain(|_, lock| lock.strong_count() > 0);
            let known = locks.get(key).and_then(Weak::upgrade);
            known.unwrap_or_else(|| {
                let lock = Arc::default();
                locks.insert(key.clone(), Arc::downgrade(&lock));
                lock
            })
        };
        lock.lock_owned().await
    }
}

impl<K> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn second_lock_of_a_key_waits_for_the_first() {
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
    async fn removes_entries_of_unlocked_keys_and_dropped_waiters() {
        let mutex = KeyedMutex::default();
        let keys = || {
            drop(mutex.lock(&0).now_or_never().expect("key 0 must be unlocked"));
            let mut keys: Vec<i32> = mutex.0.lock().unwrap().keys().copied().collect();
            keys.sort_unstable();
            keys
        };
        let first = mutex.lock(&1).await;
        {
            let mut second = std::pin::pin!(mutex.lock(&1));
            assert!(second.as_mut().now_or_never().is_none());
        }
        assert_eq!(keys(), [0, 1]);
        drop(first);
        assert_eq!(keys(), [0]);
        // A waiter that is dropped after it got the lock, and before it was polled.
        let first = mutex.lock(&1).await;
        {
            let mut second = std::pin::pin!(mutex.lock(&1));
            assert!(second.as_mut().now_or_never().is_none());
            drop(first);
        }
        assert_eq!(keys(), [0]);
    }
}
