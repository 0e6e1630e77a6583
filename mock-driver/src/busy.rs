//! One call at a time for each volume, snapshot and group.
//!
//! CSI leaves it to the driver what happens to a second call for a busy volume: it may get ABORTED
//! or wait. Calls for different volumes never meet here longer than a look into a map takes. Calls that
//! only read from something, as those that make copies of it do, bear one another and nobody else.

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

/// What a call wants for itself, by its id or by the name under which it is being made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A volume to be created.
    Name(String),
    /// A snapshot to be taken.
    SnapshotName(String),
    /// A group to be taken.
    GroupName(String),
    /// An existing group.
    Group(String),
    /// An existing snapshot.
    Snapshot(String),
    /// An existing volume.
    Volume(String),
    /// What the node this process stands on has of a volume. Controller and node are programs of their own
    /// in most drivers, so neither waits for the other.
    OnNode(String),
}

/// How much of a subject a call wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Share {
    /// All of it: it changes the subject.
    Whole,
    /// What others leave who want no more: it reads from the subject.
    Reading,
}

/// How many calls read from one subject at a time. More get ABORTED or wait.
const READERS: u32 = 1024;

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

    pub(crate) fn rule(&self) -> BusyRule {
        self.rule
    }

    /// Takes the volume for one call; none if it is busy and the rule says to abort.
    ///
    /// # Cancellation
    /// Dropped while it waits, it loses its place and nothing else.
    pub async fn hold(&self, subject: Subject, share: Share) -> Option<Held> {
        let (gate, place) = self.queue(subject);
        let permits = match share {
            Share::Whole => READERS,
            Share::Reading => 1,
        };
        let permit = match self.rule {
            BusyRule::Abort => gate.try_acquire_many_owned(permits).ok()?,
            BusyRule::Wait => gate
                .acquire_many_owned(permits)
                .await
                .expect("the gate of a volume must never be closed"),
        };
        Some(Held {
            _permit: permit,
            _place: place,
        })
    }

    /// Takes several subjects for one call, or tells which of them is busy.
    ///
    /// All calls take theirs in the same order, so that none waits for another in a circle.
    ///
    /// # Cancellation
    /// As for [`Busy::hold`]; what it has by then is given back.
    pub async fn hold_all(&self, mut wanted: Vec<(Subject, Share)>) -> Result<Vec<Held>, Subject> {
        wanted.sort();
        // Of one that is wanted twice, the larger share comes first.
        wanted.dedup_by(|(later, _), (first, _)| later == first);
        let mut held = Vec::with_capacity(wanted.len());
        for (subject, share) in wanted {
            match self.hold(subject.clone(), share).await {
                Some(one) => held.push(one),
                None => return Err(subject),
            }
        }
        Ok(held)
    }

    fn queue(&self, subject: Subject) -> (Arc<Semaphore>, Place) {
        let mut turns = lock(&self.turns);
        let gate = match turns.entry(subject.clone()) {
            Entry::Occupied(mut turn) => {
                turn.get_mut().users += 1;
                turn.get().gate.clone()
            }
            Entry::Vacant(free) => free
                .insert(Turn {
                    gate: Arc::new(Semaphore::new(READERS as usize)),
                    users: 1,
                })
                .gate
                .clone(),
        };
        let place = Place {
            turns: self.turns.clone(),
            subject,
        };
        (gate, place)
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
            Self::Snapshot(id) => write!(f, "snapshot \"{id}\""),
            Self::SnapshotName(name) => write!(f, "the snapshot named \"{name}\""),
            Self::Group(id) => write!(f, "group snapshot \"{id}\""),
            Self::GroupName(name) => write!(f, "the group snapshot named \"{name}\""),
            Self::OnNode(id) => write!(f, "volume \"{id}\" on this node"),
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
        let held = busy.hold(mk_subject("a"), Share::Whole).await.unwrap();
        assert!(busy.hold(mk_subject("a"), Share::Whole).await.is_none());
        assert!(busy.hold(mk_subject("b"), Share::Whole).await.is_some());
        assert!(busy.hold(Subject::Name("a".into()), Share::Whole).await.is_some());
        drop(held);
        assert!(busy.hold(mk_subject("a"), Share::Whole).await.is_some());
    }

    #[tokio::test]
    async fn wait_lets_calls_in_one_after_the_other_and_forgets_the_volume() {
        let busy = Busy::new(BusyRule::Wait);
        let first = busy.hold(mk_subject("a"), Share::Whole).await.unwrap();
        let mut second = task::spawn(busy.hold(mk_subject("a"), Share::Whole));
        let mut third = task::spawn(busy.hold(mk_subject("a"), Share::Whole));
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

    #[tokio::test]
    async fn readers_bear_one_another_and_nobody_else() {
        let busy = Busy::new(BusyRule::Abort);
        let first = busy.hold(mk_subject("a"), Share::Reading).await.unwrap();
        let second = busy.hold(mk_subject("a"), Share::Reading).await.unwrap();
        assert!(busy.hold(mk_subject("a"), Share::Whole).await.is_none());
        drop(first);
        assert!(busy.hold(mk_subject("a"), Share::Whole).await.is_none());
        drop(second);
        let whole = busy.hold(mk_subject("a"), Share::Whole).await.unwrap();
        assert!(busy.hold(mk_subject("a"), Share::Reading).await.is_none());
        drop(whole);
        assert!(lock(&busy.turns).is_empty());
    }

    #[tokio::test]
    async fn several_are_held_together_or_not_at_all() {
        let busy = Busy::new(BusyRule::Abort);
        let both = |share| vec![(mk_subject("b"), share), (mk_subject("a"), Share::Whole)];
        let held = busy.hold(mk_subject("b"), Share::Reading).await.unwrap();
        assert_eq!(
            busy.hold_all(both(Share::Whole)).await.unwrap_err(),
            mk_subject("b")
        );
        assert!(
            busy.hold(mk_subject("a"), Share::Whole).await.is_some(),
            "given back"
        );
        assert_eq!(busy.hold_all(both(Share::Reading)).await.unwrap().len(), 2);
        drop(held);
        let twice = vec![(mk_subject("a"), Share::Reading), (mk_subject("a"), Share::Whole)];
        let held = busy.hold_all(twice).await.unwrap();
        assert!(busy.hold(mk_subject("a"), Share::Reading).await.is_none());
        drop(held);
        assert!(lock(&busy.turns).is_empty());
    }

    #[tokio::test]
    async fn calls_that_want_the_same_in_any_order_do_not_block_one_another_for_ever() {
        let busy = Busy::new(BusyRule::Wait);
        let wanted =
            |first: &str, second: &str| [first, second].map(|id| (mk_subject(id), Share::Whole)).to_vec();
        let first = busy.hold_all(wanted("a", "b")).await.unwrap();
        let mut second = task::spawn(busy.hold_all(wanted("b", "a")));
        assert_pending!(second.poll());
        drop(first);
        assert!(assert_ready!(second.poll()).is_ok());
    }
}
