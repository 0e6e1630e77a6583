//! How many requests may be under way, and how many a second.
//!
//! Waiting here is no part of a request's deadline: who stands in line is not answered late, and a
//! thousand statuses that are due at once must not time out on their way to the door.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use super::Requests;
use crate::args::kube_api::Rate;
use crate::leader_election::{Leadership, NotLeading};

/// How many writes may be under way at once. The API server is no faster beyond about this, and
/// spends more CPU on each (docs/adr/0002-own-http-stack.md).
const WRITES: usize = 80;
/// How many of these may be such that no pod waits for. The rest is kept for attaches, so that a
/// thousand detaches that end together do not delay the next attach here.
const WRITES_NOBODY_WAITS_FOR: usize = 32;
/// How many of those while a write of an attach is under way or in line: so few that it does not wait for
/// them in the API server either, which takes one or two milliseconds of a processor for each. Those that
/// were sent before end by themselves; what follows waits here. Never none, for attaches may go on for ever.
const WRITES_BESIDE_AN_ATTACH: usize = 4;

/// How many reads of single objects may be under way at once. A Secret is read for each call that takes
/// one; a burst of them must leave streams of the connection to the writes.
const READS: usize = 64;

/// The line in front of the API server.
#[derive(Debug)]
pub(super) struct Gate {
    rate: Option<RateLimit>,
    leadership: Leadership,
    counts: Requests,
    reads: Semaphore,
    writes: Semaphore,
    unhurried: Semaphore,
    precedence: Mutex<Precedence>,
}

/// Which places for writes that nobody waits for are held back.
#[derive(Debug, Default)]
struct Precedence {
    /// Writes of attaches that are under way or in line.
    attaches: usize,
    /// Places that are held back from the others meanwhile.
    held_back: usize,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To know something.
    Read,
    /// A write of an attach: a pod waits for it.
    Attach,
    /// Any other write.
    Other,
}

/// The right to have one request under way, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    _urgent: Option<Urgent<'a>>,
    _unhurried: Option<Unhurried<'a>>,
    _request: SemaphorePermit<'a>,
}

/// A write of an attach that is under way or in line, until it is dropped.
#[derive(Debug)]
struct Urgent<'a>(&'a Gate);

/// The place of a write that nobody waits for, until it is dropped.
#[derive(Debug)]
struct Unhurried<'a> {
    gate: &'a Gate,
    permit: Option<SemaphorePermit<'a>>,
}

/// A token bucket for all requests of the process, its watches included, as the Go sidecar has one
/// for its API client (`--kube-api-qps`, `--kube-api-burst`).
#[derive(Clone, Debug)]
pub struct RateLimit(Arc<Mutex<Bucket>>);

/// Tokens come at a steady rate and are kept up to a number; below zero it is owed to those in line.
#[derive(Debug)]
struct Bucket {
    per_second: f64,
    most: f64,
    tokens: f64,
    counted: Instant,
}

// === impl Gate ===

impl Gate {
    pub(super) fn new(rate: Option<RateLimit>, leadership: Leadership, counts: Requests) -> Self {
        Self {
            rate,
            leadership,
            counts,
            reads: Semaphore::new(READS),
            writes: Semaphore::new(WRITES),
            unhurried: Semaphore::new(WRITES_NOBODY_WAITS_FOR),
            precedence: Mutex::default(),
        }
    }

    /// Where it is told that a request is sent once more.
    pub(super) fn counts(&self) -> &Requests {
        &self.counts
    }

    /// Waits until a request may be sent, at once.
    ///
    /// # Errors
    ///
    /// It would write, and we do not lead.
    ///
    /// # Cancellation
    ///
    /// The place in line is lost, and the token with it.
    pub(super) async fn enter(&self, purpose: Purpose) -> Result<Place<'_>, NotLeading> {
        let _urgent = (purpose == Purpose::Attach).then(|| Urgent::new(self));
        // In this order, so that who waits for an unhurried place stands in nobody's way.
        let _unhurried = match purpose {
            Purpose::Other => Some(Unhurried {
                permit: Some(permit(&self.unhurried).await),
                gate: self,
            }),
            Purpose::Read | Purpose::Attach => None,
        };
        let _request = match purpose {
            Purpose::Read => permit(&self.reads).await,
            Purpose::Attach | Purpose::Other => permit(&self.writes).await,
        };
        if let Some(rate) = &self.rate {
            rate.turn().await;
        }
        // After all waits: somebody else may have come to lead during them.
        if let Some(leadership) = self.fence(purpose) {
            leadership.check()?;
        }
        Ok(Place {
            _urgent,
            _unhurried,
            _request,
        })
    }

    /// What must last for as long as such a request is under way.
    pub(super) fn fence(&self, purpose: Purpose) -> Option<&Leadership> {
        match purpose {
            Purpose::Read => None,
            Purpose::Attach | Purpose::Other => Some(&self.leadership),
        }
    }

    fn precedence(&self) -> MutexGuard<'_, Precedence> {
        self.precedence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many places are held back while there are attaches.
const HELD_BACK: usize = WRITES_NOBODY_WAITS_FOR - WRITES_BESIDE_AN_ATTACH;

// === impl Urgent ===

impl<'a> Urgent<'a> {
    fn new(gate: &'a Gate) -> Self {
        let mut precedence = gate.precedence();
        precedence.attaches += 1;
        // The free ones at once; the others when they are given back.
        let wanted = HELD_BACK - precedence.held_back;
        precedence.held_back += gate.unhurried.forget_permits(wanted);
        Self(gate)
    }
}

impl Drop for Urgent<'_> {
    fn drop(&mut self) {
        let mut precedence = self.0.precedence();
        precedence.attaches -= 1;
        if precedence.attaches == 0 {
            let held_back = std::mem::take(&mut precedence.held_back);
            self.0.unhurried.add_permits(held_back);
        }
    }
}

// === impl Unhurried ===

impl Drop for Unhurried<'_> {
    fn drop(&mut self) {
        let mut precedence = self.gate.precedence();
        if precedence.attaches > 0 && precedence.held_back < HELD_BACK {
            precedence.held_back += 1;
            if let Some(permit) = self.permit.take() {
                permit.forget();
            }
        }
    }
}

async fn permit(semaphore: &Semaphore) -> SemaphorePermit<'_> {
    semaphore
        .acquire()
        .await
        .expect("the semaphore must never be closed")
}

// === impl RateLimit ===

impl RateLimit {
    /// A full bucket.
    pub fn new(rate: Rate) -> Self {
        let most = f64::from(rate.burst);
        Self(Arc::new(Mutex::new(Bucket {
            per_second: rate.qps,
            most,
            tokens: most,
            counted: Instant::now(),
        })))
    }

    /// Waits until one more request may be sent; first come, first served.
    ///
    /// # Cancellation
    ///
    /// The token is lost.
    pub(super) async fn turn(&self) {
        let wait = {
            let mut bucket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(Instant::now())
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

// === impl Bucket ===

impl Bucket {
    /// Takes a token and says how long it is until there is one.
    fn take(&mut self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(self.counted).as_secs_f64();
        self.counted = now;
        self.tokens = (self.tokens + since * self.per_second).min(self.most) - 1.0;
        let owed = (-self.tokens).max(0.0);
        Duration::try_from_secs_f64(owed / self.per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use futures::future::join_all;

    use super::*;

    fn mk_limit(qps: f64, burst: u32) -> RateLimit {
        RateLimit::new(Rate { qps, burst })
    }

    fn mk_gate(rate: Option<RateLimit>) -> Gate {
        Gate::new(rate, Leadership::unopposed(), Requests::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_comes_at_the_rate() {
        let limit = mk_limit(5.0, 10);
        let begin = Instant::now();
        let turns = (0..35).map(|_| async {
            limit.turn().await;
            begin.elapsed().as_millis()
        });
        let times = join_all(turns).await;
        assert_eq!(times[..10], [0; 10]);
        for (n, after) in times[10..].iter().enumerate() {
            let due = (n as u128 + 1) * 200;
            assert!(
                after.abs_diff(due) <= 2,
                "turn {n} came at {after} and not at {due}"
            );
        }
        // A pause fills the bucket to its rim and not further.
        sleep(Duration::from_secs(3600)).await;
        let begin = Instant::now();
        join_all((0..15).map(|_| limit.turn())).await;
        assert!(begin.elapsed().abs_diff(Duration::from_secs(1)) <= Duration::from_millis(2));
    }

    #[tokio::test(start_paused = true)]
    async fn odd_rates_are_kept_too() {
        for (qps, burst) in [(1e300, 1), (1e-300, 3)] {
            let limit = mk_limit(qps, burst);
            for _ in 0..burst {
                assert!(limit.turn().now_or_never().is_some(), "{qps} {burst}");
            }
            let next = limit.turn().now_or_never();
            assert_eq!(next.is_some(), qps > 1e9, "{qps} {burst}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_who_send_share_one_bucket() {
        let limit = mk_limit(1.0, 2);
        let (one, other) = (mk_gate(Some(limit.clone())), limit);
        one.enter(Purpose::Attach).await.unwrap();
        other.turn().await;
        let begin = Instant::now();
        one.enter(Purpose::Read).await.unwrap();
        assert_eq!(begin.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_stood_in_line_while_another_came_to_lead_does_not_write() {
        let leadership = Leadership::until(Instant::now() + Duration::from_millis(1500));
        let gate = Gate::new(Some(mk_limit(1.0, 1)), leadership, Requests::default());
        assert!(gate.enter(Purpose::Attach).await.is_ok());
        assert!(gate.enter(Purpose::Other).await.is_ok(), "a second later");
        for purpose in [Purpose::Attach, Purpose::Other] {
            assert_eq!(gate.enter(purpose).await.err(), Some(NotLeading));
        }
        assert!(gate.enter(Purpose::Read).await.is_ok());
    }

    #[test]
    fn detaches_leave_room_for_an_attach() {
        let gate = mk_gate(None);
        let detaches: Vec<_> = (0..1000)
            .map_while(|_| gate.enter(Purpose::Other).now_or_never())
            .collect();
        assert_eq!(detaches.len(), WRITES_NOBODY_WAITS_FOR);
        // One in line before the attach takes nothing from it.
        let mut waiting = std::pin::pin!(gate.enter(Purpose::Other));
        assert!(waiting.as_mut().now_or_never().is_none());
        let attaches: Vec<_> = (0..1000)
            .map_while(|_| gate.enter(Purpose::Attach).now_or_never())
            .collect();
        assert_eq!(attaches.len(), WRITES - WRITES_NOBODY_WAITS_FOR);
        assert!(gate.enter(Purpose::Read).now_or_never().is_some());
        drop(detaches);
        assert!(waiting.now_or_never().is_some());
    }

    #[test]
    fn reads_are_bounded_and_stand_in_no_writers_way() {
        let gate = mk_gate(None);
        let reads: Vec<_> = (0..1000)
            .map_while(|_| gate.enter(Purpose::Read).now_or_never())
            .collect();
        assert_eq!(reads.len(), READS);
        let mut waiting = std::pin::pin!(gate.enter(Purpose::Read));
        assert!(waiting.as_mut().now_or_never().is_none());
        for purpose in [Purpose::Attach, Purpose::Other] {
            assert!(gate.enter(purpose).now_or_never().is_some());
        }
        drop(reads);
        assert!(waiting.now_or_never().is_some());
    }

    /// How many more unhurried writes could be sent now.
    fn free(gate: &Gate) -> usize {
        let taken = (0..1000).map_while(|_| gate.enter(Purpose::Other).now_or_never());
        taken.collect::<Vec<_>>().len()
    }

    #[test]
    fn detaches_hold_back_while_an_attach_is_written() {
        let gate = mk_gate(None);
        let mut detaches: Vec<_> = (0..WRITES_NOBODY_WAITS_FOR)
            .filter_map(|_| gate.enter(Purpose::Other).now_or_never())
            .collect();
        let attach = gate.enter(Purpose::Attach).now_or_never();
        let other = gate.enter(Purpose::Attach).now_or_never();
        assert!(attach.is_some() && other.is_some());
        // What is under way ends; few take its place.
        while detaches.len() > WRITES_BESIDE_AN_ATTACH {
            detaches.pop();
            assert_eq!(free(&gate), 0, "{} are under way", detaches.len());
        }
        for expected in 1..=WRITES_BESIDE_AN_ATTACH {
            detaches.pop();
            assert_eq!(free(&gate), expected);
        }
        drop(attach);
        assert_eq!(
            free(&gate),
            WRITES_BESIDE_AN_ATTACH,
            "the other attach is written yet"
        );
        drop(other);
        assert_eq!(free(&gate), WRITES_NOBODY_WAITS_FOR);
        let attach = gate.enter(Purpose::Attach).now_or_never();
        assert_eq!(
            free(&gate),
            WRITES_BESIDE_AN_ATTACH,
            "the free ones are held back at once"
        );
        drop(attach);
        assert_eq!(free(&gate), WRITES_NOBODY_WAITS_FOR);
    }

    #[test]
    fn an_attach_in_line_holds_detaches_back_until_it_is_dropped() {
        let gate = mk_gate(None);
        let attaches: Vec<_> = (0..WRITES)
            .filter_map(|_| gate.enter(Purpose::Attach).now_or_never())
            .collect();
        let mut in_line = Box::pin(gate.enter(Purpose::Attach));
        assert!(in_line.as_mut().now_or_never().is_none());
        drop(attaches);
        assert_eq!(free(&gate), WRITES_BESIDE_AN_ATTACH);
        drop(in_line);
        assert_eq!(free(&gate), WRITES_NOBODY_WAITS_FOR);
    }
}
