//! One call at a time for each volume.
//!
//! CSI leaves it to the driver what happens to a second call for a busy volume: it may get ABORTED
//! or wait. Calls for different volumes never meet here longer than a look into a map takes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What becomes of a call that finds its volume busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyRule {
    /// It fails with ABORTED.
    #[default]
    Abort,
    /// It waits for its turn, first come first served.
    Wait,
}

/// A volume, by its id or by the name under which it is being created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// An existing volume.
    Volume(String),
    /// A volume to be created.
    Name(String),
}

/// Which volumes have a call running.
#[derive(Debug)]
pub struct Busy {
    rule: BusyRule,
    turns: Arc<Mutex<Turns>>,
}

type Turns = HashMap<Subject, Turn>;

/// The queue for one volume; gone when nobody holds or awaits it.
#[derive(Debug)]
struct Turn {
    gate: Arc<Semaphore>,
    users: usize,
}

/// A call's hold on a volume.
#[derive(Debug)]
pub struct Held {
    _permit: OwnedSemaphorePermit,
    _place: Place,
}

/// A place in a volume's queue, counted so that the last one out removes the queue.
#[derive(Debug)]
struct Place {
    turns: Arc<Mutex<Turns>>,
    subject: Subject,
}

// === impl Busy ===

impl Busy {
    /// Nothing is busy yet.
    pub fn new(rule: BusyRule) -> Self {
        Self {
            rule,
            turns: Arc::default(),
        }
    }

    /// Takes the volume for one call; none if it is busy and the rule says to abort.
    ///
    /// # Cancellation
    /// Dropped while it waits, it loses its place and nothing else.
    pub async fn hold(&self, subject: Subject) -> Option<Held> {
        let (gate, place) = self.queue(subject)?;
        let permit = gate
            .acquire_owned()
            .await
            .expect("the gate of a volume must never be closed");
        Some(Held {
            _permit: permit,
            _place: place,
        })
    }

    fn queue(&self, subject: Subject) -> Option<(Arc<Semaphore>, Place)> {
        let mut turns = lock(&self.turns);
        let gate = match turns.entry(subject.clone()) {
            Entry::Occupied(_) if self.rule == BusyRule::Abort => return None,
            Entry::Occupied(mut turn) => {
                turn.get_mut().users += 1;
                turn.get().gate.clone()
            }
            Entry::Vacant(free) => free
                .insert(Turn {
                    gate: Arc::new(Semaphore::new(1)),
                    users: 1,
                })
                .gate
                .clone(),
        };
        Some((
            gate,
            Place {
                turns: self.turns.clone(),
                subject,
            },
        ))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut turns = lock(&self.turns);
        if let Some(turn) = turns.get_mut(&self.subject) {
            turn.users -= 1;
            if turn.users == 0 {
                turns.remove(&self.subject);
            }
        }
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Volume(id) => write!(f, "volume \"{id}\""),
            Self::Name(name) => write!(f, "the volume named \"{name}\""),
        }
    }
}

fn lock(turns: &Mutex<Turns>) -> MutexGuard<'_, Turns> {
    turns.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    fn mk_subject(id: &str) -> Subject {
        Subject::Volume(id.to_owned())
    }

    #[tokio::test]
    async fn abort_refuses_the_second_call_and_only_for_the_same_volume() {
        let busy = Busy::new(BusyRule::Abort);
        let held = busy.hold(mk_subject("a")).await.unwrap();
        assert!(busy.hold(mk_subject("a")).await.is_none());
        assert!(busy.hold(mk_subject("b")).await.is_some());
        assert!(busy.hold(Subject::Name("a".into())).await.is_some());
        drop(held);
        assert!(busy.hold(mk_subject("a")).await.is_some());
    }

    #[tokio::test]
    async fn wait_lets_calls_in_one_after_the_other_and_forgets_the_volume() {
        let busy = Busy::new(BusyRule::Wait);
        let first = busy.hold(mk_subject("a")).await.unwrap();
        let mut second = task::spawn(busy.hold(mk_subject("a")));
        let mut third = task::spawn(busy.hold(mk_subject("a")));
        assert_pending!(second.poll());
        assert_pending!(third.poll());
        drop(first);
        assert!(second.is_woken());
        let held = assert_ready!(second.poll());
        assert_pending!(third.poll());
        drop(third);
        drop(held);
        assert!(lock(&busy.turns).is_empty());
    }
}
