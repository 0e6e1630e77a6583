//! KeyedMutex: whoever has the turn of a key is alone with it until the turn is dropped.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// A lock for each key that somebody has or waits for, and for no other.
#[derive(Debug)]
pub(super) struct KeyedMutex<K>(Mutex<HashMap<K, Arc<AsyncMutex<()>>>>);

/// Ends when it is dropped.
#[must_use]
#[derive(Debug)]
pub(super) struct KeyedGuard<'t, K: Eq + Hash> {
    // In this order: the next one goes on before it is looked whether there is one.
    _held: OwnedMutexGuard<()>,
    _waiter: Waiter<'t, K>,
}

/// A waiter in the line, the first included.
#[derive(Debug)]
struct Waiter<'t, K: Eq + Hash> {
    mutex: &'t KeyedMutex<K>,
    key: K,
    lock: Arc<AsyncMutex<()>>,
}

// === impl KeyedMutex ===

impl<K: Eq + Hash + Clone> KeyedMutex<K> {
    /// Waits for the turn of `key`.
    ///
    /// # Cancellation
    ///
    /// Whoever gives up leaves the line, and nothing behind.
    pub(super) async fn lock(&self, key: &K) -> KeyedGuard<'_, K> {
        let waiter = Waiter {
            mutex: self,
            key: key.clone(),
            lock: self.locks().entry(key.clone()).or_default().clone(),
        };
        let held = waiter.lock.clone().lock_owned().await;
        KeyedGuard {
            _held: held,
            _waiter: waiter,
        }
    }
}

impl<K: Eq + Hash + Clone + Ord> KeyedMutex<K> {
    /// Waits for the mutex of two keys, which are not the same. Those who want both never wait for each other.
    ///
    /// # Cancellation
    ///
    /// As with [`KeyedMutex::lock`].
    pub(super) async fn lock_both(&self, one: &K, other: &K) -> (KeyedGuard<'_, K>, KeyedGuard<'_, K>) {
        if one < other {
            let one = self.lock(one).await;
            (one, self.lock(other).await)
        } else {
            let other = self.lock(other).await;
            (self.lock(one).await, other)
        }
    }
}

impl<K> KeyedMutex<K> {
    fn locks(&self) -> MutexGuard<'_, HashMap<K, Arc<AsyncMutex<()>>>> {
        // Nothing that is done with it leaves it half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Default for KeyedMutex<K> {
    fn default() -> Self {
        Self(Mutex::new(HashMap::new()))
    }
}

// === impl Waiter ===

impl<K: Eq + Hash> Drop for Waiter<'_, K> {
    fn drop(&mut self) {
        let mut locks = self.mutex.locks();
        // While all are locked, so that of several who leave at once the last one sees that he is.
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
    async fn one_at_a_time_has_the_turn_of_a_key() {
        let mutex = KeyedMutex::default();
        let first = mutex.lock(&1).await;
        let other = mutex.lock(&2).now_or_never();
        assert!(other.is_some(), "another key is nobody's");
        let mut second = std::pin::pin!(mutex.lock(&1));
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn two_who_want_both_turns_do_not_wait_for_each_other() {
        let mutex = KeyedMutex::default();
        let first = mutex.lock(&1).await;
        let mut both = std::pin::pin!(mutex.lock_both(&2, &1));
        assert!(both.as_mut().now_or_never().is_none());
        let mut crossed = std::pin::pin!(mutex.lock_both(&1, &2));
        assert!(crossed.as_mut().now_or_never().is_none());
        drop(first);
        let (two, one) = both.now_or_never().expect("nobody has any");
        assert_eq!((&two._waiter.key, &one._waiter.key), (&2, &1));
        assert!(crossed.as_mut().now_or_never().is_none());
        drop((two, one));
        assert!(crossed.now_or_never().is_some());
    }

    #[tokio::test]
    async fn nothing_is_kept_of_those_who_are_done_or_gave_up() {
        let mutex = KeyedMutex::default();
        let first = mutex.lock(&1).await;
        {
            let mut second = std::pin::pin!(mutex.lock(&1));
            assert!(second.as_mut().now_or_never().is_none());
        }
        assert_eq!(mutex.locks().len(), 1);
        drop(first);
        assert!(mutex.locks().is_empty());
    }
}
