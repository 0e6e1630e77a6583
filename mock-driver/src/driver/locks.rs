//! The lock table: a keyed reader-writer lock for each volume, snapshot and group.
//!
//! CSI allows a driver to abort a second call for a busy volume or to let it wait. Calls for different volumes do not wait
//! for each other. Calls that only read an object, such as the source of a copy, share its lock.
//!
//! A key is locked in two scopes: in `Scope::Call` until the response is ready, injected delays included, and in
//! `Scope::Operation` while the array works. The admin API uses only the latter, so it does not wait for delayed calls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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

/// The scope of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Scope {
    /// A call, from its arrival to its response. A second call follows the [`BusyRule`].
    Call,
    /// An operation of the array. A second one waits.
    Operation,
}

/// A key: the id of an object, or the name of one to create.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A volume to be created.
    Name(String),
    /// A snapshot to create.
    SnapshotName(String),
    /// A group to create.
    GroupName(String),
    /// An existing group.
    Group(String),
    /// An existing snapshot.
    Snapshot(String),
    /// An existing volume.
    Volume(String),
    /// A volume on the node of this process. In most drivers, controller and node are separate processes, so neither waits for
    /// the other.
    OnNode(String),
}

/// The mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LockMode {
    /// Exclusive.
    Exclusive,
    /// Shared by readers.
    Shared,
}

/// Maximum number of concurrent readers of a key. Further ones are aborted or wait.
const READERS: u32 = 1024;

/// All locks of a driver.
#[derive(Debug)]
pub(crate) struct LockTable {
    rule: BusyRule,
    locks: Arc<Mutex<Locks>>,
}

type Locks = HashMap<(Scope, Key), Lock>;

/// The lock of one key, which exists while it is held or awaited.
#[derive(Debug)]
struct Lock {
    semaphore: Arc<Semaphore>,
    users: usize,
}

/// Unlocks when it is dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    _permit: OwnedSemaphorePermit,
    _user: LockEntry,
}

/// A holder or waiter of a lock; the last one removes it.
#[derive(Debug)]
struct LockEntry {
    locks: Arc<Mutex<Locks>>,
    key: (Scope, Key),
}

/// Another call holds the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Busy(pub Key);

// === impl LockTable ===

impl LockTable {
    /// An empty table; the rule applies to calls.
    pub(crate) fn new(rule: BusyRule) -> Self {
        Self {
            rule,
            locks: Arc::default(),
        }
    }

    pub(crate) fn rule(&self) -> BusyRule {
        self.rule
    }

    /// Locks a key.
    ///
    /// # Errors
    /// Another call holds it, and the rule is to abort.
    ///
    /// # Cancellation
    /// Safe: a dropped waiter only loses its place in the queue.
    pub(crate) async fn lock(&self, scope: Scope, key: Key, share: LockMode) -> Result<Guard, Busy> {
        let key = (scope, key);
        let semaphore = {
            let mut locks = all(&self.locks);
            let lock = locks.entry(key.clone()).or_insert_with(|| Lock {
                semaphore: Arc::new(Semaphore::new(READERS as usize)),
                users: 0,
            });
            lock.users += 1;
            lock.semaphore.clone()
        };
        let user = LockEntry {
            locks: self.locks.clone(),
            key,
        };
        let permits = match share {
            LockMode::Exclusive => READERS,
            LockMode::Shared => 1,
        };
        let permit = match (scope, self.rule) {
            (Scope::Call, BusyRule::Abort) => semaphore
                .try_acquire_many_owned(permits)
                .map_err(|_| Busy(user.key.1.clone()))?,
            (Scope::Call, BusyRule::Wait) | (Scope::Operation, _) => semaphore
                .acquire_many_owned(permits)
                .await
                .expect("a lock's semaphore must never be closed"),
        };
        Ok(Guard {
            _permit: permit,
            _user: user,
        })
    }

    /// Locks several keys in a fixed order, so that calls cannot deadlock.
    ///
    /// # Errors
    /// Those of [`LockTable::lock`]; keys locked by then are unlocked.
    ///
    /// # Cancellation
    /// That of [`LockTable::lock`].
    pub(crate) async fn lock_all(
        &self,
        scope: Scope,
        mut keys: Vec<(Key, LockMode)>,
    ) -> Result<Vec<Guard>, Busy> {
        keys.sort();
        // Of duplicate keys, the exclusive one sorts first.
        keys.dedup_by(|(later, _), (first, _)| later == first);
        let mut locked = Vec::with_capacity(keys.len());
        for (key, share) in keys {
            locked.push(self.lock(scope, key, share).await?);
        }
        Ok(locked)
    }
}

impl Drop for LockEntry {
    fn drop(&mut self) {
        let mut locks = all(&self.locks);
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

fn all(locks: &Mutex<Locks>) -> MutexGuard<'_, Locks> {
    locks.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    fn mk_key(id: &str) -> Key {
        Key::Volume(id.to_owned())
    }

    #[tokio::test]
    async fn abort_refuses_the_second_call_and_only_for_the_same_volume() {
        let table = LockTable::new(BusyRule::Abort);
        let held = table
            .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
            .await
            .unwrap();
        assert!(
            table
                .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
                .await
                .is_err()
        );
        assert!(
            table
                .lock(Scope::Call, mk_key("b"), LockMode::Exclusive)
                .await
                .is_ok()
        );
        assert!(
            table
                .lock(Scope::Call, Key::Name("a".into()), LockMode::Exclusive)
                .await
                .is_ok()
        );
        drop(held);
        assert!(
            table
                .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
                .await
                .is_ok()
        );
    }

    #[tokio::test]
    async fn wait_lets_calls_in_one_after_the_other_and_forgets_the_volume() {
        let table = LockTable::new(BusyRule::Wait);
        let first = table
            .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
            .await
            .unwrap();
        let mut second = task::spawn(table.lock(Scope::Call, mk_key("a"), LockMode::Exclusive));
        let mut third = task::spawn(table.lock(Scope::Call, mk_key("a"), LockMode::Exclusive));
        assert_pending!(second.poll());
        assert_pending!(third.poll());
        drop(first);
        assert!(second.is_woken());
        let held = assert_ready!(second.poll()).unwrap();
        assert_pending!(third.poll());
        drop(third);
        drop(held);
        assert!(all(&table.locks).is_empty());
    }

    #[tokio::test]
    async fn readers_bear_one_another_and_nobody_else() {
        let table = LockTable::new(BusyRule::Abort);
        let first = table
            .lock(Scope::Call, mk_key("a"), LockMode::Shared)
            .await
            .unwrap();
        let second = table
            .lock(Scope::Call, mk_key("a"), LockMode::Shared)
            .await
            .unwrap();
        assert!(
            table
                .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
                .await
                .is_err()
        );
        drop(first);
        assert!(
            table
                .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
                .await
                .is_err()
        );
        drop(second);
        let whole = table
            .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
            .await
            .unwrap();
        assert!(
            table
                .lock(Scope::Call, mk_key("a"), LockMode::Shared)
                .await
                .is_err()
        );
        drop(whole);
        assert!(all(&table.locks).is_empty());
    }

    #[tokio::test]
    async fn several_are_held_together_or_not_at_all() {
        let table = LockTable::new(BusyRule::Abort);
        let both = |share| vec![(mk_key("b"), share), (mk_key("a"), LockMode::Exclusive)];
        let held = table
            .lock(Scope::Call, mk_key("b"), LockMode::Shared)
            .await
            .unwrap();
        assert_eq!(
            table
                .lock_all(Scope::Call, both(LockMode::Exclusive))
                .await
                .unwrap_err(),
            Busy(mk_key("b"))
        );
        assert!(
            table
                .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
                .await
                .is_ok(),
            "given back"
        );
        assert_eq!(
            table
                .lock_all(Scope::Call, both(LockMode::Shared))
                .await
                .unwrap()
                .len(),
            2
        );
        drop(held);
        let twice = vec![
            (mk_key("a"), LockMode::Shared),
            (mk_key("a"), LockMode::Exclusive),
        ];
        let held = table.lock_all(Scope::Call, twice).await.unwrap();
        assert!(
            table
                .lock(Scope::Call, mk_key("a"), LockMode::Shared)
                .await
                .is_err()
        );
        drop(held);
        assert!(all(&table.locks).is_empty());
    }

    #[tokio::test]
    async fn calls_that_want_the_same_in_any_order_do_not_block_one_another_for_ever() {
        let table = LockTable::new(BusyRule::Wait);
        let wanted = |first: &str, second: &str| {
            [first, second]
                .map(|id| (mk_key(id), LockMode::Exclusive))
                .to_vec()
        };
        let first = table.lock_all(Scope::Call, wanted("a", "b")).await.unwrap();
        let mut second = task::spawn(table.lock_all(Scope::Call, wanted("b", "a")));
        assert_pending!(second.poll());
        drop(first);
        assert!(assert_ready!(second.poll()).is_ok());
    }

    #[tokio::test]
    async fn operations_wait_for_one_another_and_not_for_calls() {
        let table = LockTable::new(BusyRule::Abort);
        let call = table
            .lock(Scope::Call, mk_key("a"), LockMode::Exclusive)
            .await
            .unwrap();
        let operation = table
            .lock(Scope::Operation, mk_key("a"), LockMode::Exclusive)
            .await
            .unwrap();
        let mut other = task::spawn(table.lock(Scope::Operation, mk_key("a"), LockMode::Exclusive));
        assert_pending!(other.poll());
        drop(call);
        assert_pending!(other.poll());
        drop(operation);
        assert_ready!(other.poll()).unwrap();
    }
}
