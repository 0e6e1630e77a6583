//! The lock table: a keyed reader-writer lock for each volume, snapshot and group.
//!
//! CSI allows a driver to abort a second call for a busy volume or to let it wait. Calls for different volumes do not wait
//! for each other. Calls that only read an object, such as the source of a copy, share its lock.
//!
//! A key is locked in two scopes: in `Scope::Call` until the response is ready, injected delays included, and in
//! `Scope::Operation` while the array works. The admin API uses only the latter, so it does not wait for delayed calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Behaviour for a call whose volume is locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyRule {
    /// The call fails with ABORTED.
    #[default]
    Abort,
    /// The call waits, first come first served.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    /// A call, from its arrival to its response. A second call follows the [`BusyRule`].
    Call,
    /// An operation of the array. A second one waits.
    Operation,
}

/// A key: the id of an object, or the name of one to create.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// A volume to be created.
    Name(String),
    SnapshotName(String),
    GroupName(String),
    Group(String),
    Snapshot(String),
    Volume(String),
    /// A volume on the node of this process. In most drivers, controller and node are separate processes, so neither waits for
    /// the other.
    OnNode(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockMode {
    Exclusive,
    Shared,
}

/// Maximum number of concurrent readers of a key. Further ones are aborted or wait.
const READERS: u32 = 1024;

#[derive(Debug)]
pub(crate) struct LockTable {
    /// Applies to calls.
    pub(crate) rule: BusyRule,
    locks: Arc<Mutex<Locks>>,
}

type Locks = HashMap<(Scope, Key), Lock>;

/// The lock of one key, which exists while it is held or awaited.
#[derive(Debug)]
struct Lock {
    semaphore: Arc<Semaphore>,
    users: usize,
}

/// A holder or waiter of a lock. Dropping it unlocks; the last one removes the lock.
#[derive(Debug)]
pub(crate) struct Guard {
    /// `None` while it waits.
    permit: Option<OwnedSemaphorePermit>,
    locks: Arc<Mutex<Locks>>,
    key: (Scope, Key),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Busy(pub Key);

// === impl LockTable ===

impl LockTable {
    pub(crate) fn new(rule: BusyRule) -> Self {
        Self {
            rule,
            locks: Arc::default(),
        }
    }

    /// Locks keys in a fixed order, so that calls cannot deadlock.
    ///
    /// # Errors
    /// Another call holds one of them, and the rule is to abort; keys locked by then are unlocked.
    ///
    /// # Cancellation
    /// Safe: a dropped waiter only loses its position in the queue.
    pub(crate) async fn lock(
        &self,
        scope: Scope,
        mut keys: Vec<(Key, LockMode)>,
    ) -> Result<Vec<Guard>, Busy> {
        keys.sort();
        // Of duplicate keys, the exclusive one sorts first.
        keys.dedup_by(|(later, _), (first, _)| later == first);
        let mut guards = Vec::with_capacity(keys.len());
        for (key, mode) in keys {
            let key = (scope, key);
            let semaphore = {
                let mut locks = crate::lock(&self.locks);
                let lock = locks.entry(key.clone()).or_insert_with(|| Lock {
                    semaphore: Arc::new(Semaphore::new(READERS as usize)),
                    users: 0,
                });
                lock.users += 1;
                lock.semaphore.clone()
            };
            let mut guard = Guard {
                permit: None,
                locks: self.locks.clone(),
                key,
            };
            let permits = match mode {
                LockMode::Exclusive => READERS,
                LockMode::Shared => 1,
            };
            guard.permit = Some(match (scope, self.rule) {
                (Scope::Call, BusyRule::Abort) => semaphore
                    .try_acquire_many_owned(permits)
                    .map_err(|_| Busy(guard.key.1.clone()))?,
                (Scope::Call, BusyRule::Wait) | (Scope::Operation, _) => semaphore
                    .acquire_many_owned(permits)
                    .await
                    .expect("a lock's semaphore must never be closed"),
            });
            guards.push(guard);
        }
        Ok(guards)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.permit = None;
        let mut locks = crate::lock(&self.locks);
        if let Some(lock) = locks.get_mut(&self.key) {
            lock.users -= 1;
            if lock.users == 0 {
                locks.remove(&self.key);
            }
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Volume(id) => write!(f, "volume \"{id}\""),
            Self::Name(name) => write!(f, "the volume named \"{name}\""),
            Self::Snapshot(id) => write!(f, "snapshot \"{id}\""),
            Self::SnapshotName(name) => write!(f, "the snapshot named \"{name}\""),
            Self::Group(id) => write!(f, "group snapshot \"{id}\""),
            Self::GroupName(name) => write!(f, "the group snapshot named \"{name}\""),
            Self::OnNode(id) => write!(f, "volume \"{id}\" on this node"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    const A: &[(&str, LockMode)] = &[("a", LockMode::Exclusive)];
    const A_SHARED: &[(&str, LockMode)] = &[("a", LockMode::Shared)];
    const B: &[(&str, LockMode)] = &[("b", LockMode::Exclusive)];
    const B_SHARED: &[(&str, LockMode)] = &[("b", LockMode::Shared)];

    async fn lock(table: &LockTable, scope: Scope, volumes: &[(&str, LockMode)]) -> Result<Vec<Guard>, Busy> {
        let keys = volumes
            .iter()
            .map(|(id, mode)| (Key::Volume((*id).to_owned()), *mode));
        table.lock(scope, keys.collect()).await
    }

    async fn call(table: &LockTable, volumes: &[(&str, LockMode)]) -> Result<Vec<Guard>, Busy> {
        lock(table, Scope::Call, volumes).await
    }

    fn is_unused(table: &LockTable) -> bool {
        table.locks.lock().unwrap().is_empty()
    }

    #[tokio::test]
    async fn abort_refuses_the_second_call_and_only_for_the_same_volume() {
        let table = LockTable::new(BusyRule::Abort);
        let held = call(&table, A).await.unwrap();
        assert!(call(&table, A).await.is_err());
        assert!(call(&table, B).await.is_ok());
        let name = vec![(Key::Name("a".into()), LockMode::Exclusive)];
        assert!(table.lock(Scope::Call, name).await.is_ok());
        drop(held);
        assert!(call(&table, A).await.is_ok());
    }

    #[tokio::test]
    async fn wait_rule_queues_calls_and_drops_free_keys() {
        let table = LockTable::new(BusyRule::Wait);
        let first = call(&table, A).await.unwrap();
        let mut second = task::spawn(call(&table, A));
        let mut third = task::spawn(call(&table, A));
        assert_pending!(second.poll());
        assert_pending!(third.poll());
        drop(first);
        assert!(second.is_woken());
        let held = assert_ready!(second.poll()).unwrap();
        assert_pending!(third.poll());
        drop(third);
        drop(held);
        assert!(is_unused(&table));
    }

    #[tokio::test]
    async fn shared_locks_exclude_exclusive_ones_only() {
        let table = LockTable::new(BusyRule::Abort);
        let first = call(&table, A_SHARED).await.unwrap();
        let second = call(&table, A_SHARED).await.unwrap();
        assert!(call(&table, A).await.is_err());
        drop(first);
        assert!(call(&table, A).await.is_err());
        drop(second);
        let whole = call(&table, A).await.unwrap();
        assert!(call(&table, A_SHARED).await.is_err());
        drop(whole);
        assert!(is_unused(&table));
    }

    #[tokio::test]
    async fn multiple_keys_are_locked_all_or_nothing() {
        let table = LockTable::new(BusyRule::Abort);
        let held = call(&table, B_SHARED).await.unwrap();
        let busy = call(&table, &[B, A].concat()).await.unwrap_err();
        assert_eq!(busy, Busy(Key::Volume("b".into())));
        assert!(call(&table, A).await.is_ok(), "given back");
        assert_eq!(call(&table, &[B_SHARED, A].concat()).await.unwrap().len(), 2);
        drop(held);
        let held = call(&table, &[A_SHARED, A].concat()).await.unwrap();
        assert!(call(&table, A_SHARED).await.is_err());
        drop(held);
        assert!(is_unused(&table));
    }

    #[tokio::test]
    async fn calls_locking_the_same_keys_in_any_order_do_not_deadlock() {
        let table = LockTable::new(BusyRule::Wait);
        let (a, b) = (call(&table, A).await.unwrap(), call(&table, B).await.unwrap());
        let (both, reversed) = ([A, B].concat(), [B, A].concat());
        let mut one = task::spawn(call(&table, &both));
        let mut other = task::spawn(call(&table, &reversed));
        assert_pending!(one.poll());
        assert_pending!(other.poll());
        // If each took its own first volume now, it would wait for the other's.
        drop((a, b));
        assert!(assert_ready!(one.poll()).is_ok());
        drop(one);
        assert!(assert_ready!(other.poll()).is_ok());
    }

    #[tokio::test]
    async fn operations_wait_for_one_another_and_not_for_calls() {
        let table = LockTable::new(BusyRule::Abort);
        let held = call(&table, A).await.unwrap();
        let operation = lock(&table, Scope::Operation, A).await.unwrap();
        let mut other = task::spawn(lock(&table, Scope::Operation, A));
        assert_pending!(other.poll());
        drop(held);
        assert_pending!(other.poll());
        drop(operation);
        assert_ready!(other.poll()).unwrap();
    }
}
