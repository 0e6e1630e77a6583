//! Limits of the requests in flight and of their rate.
//!
//! The wait for a permit does not count towards a request's deadline: a thousand statuses that are due at once must not time out
//! before they are sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex as FairMutex, Semaphore, SemaphorePermit};
use tokio::time::{Instant, sleep};

use super::Requests;
use crate::leader_election::{Leadership, NotLeading};

/// Maximum writes in flight. Beyond about this number the API server is no faster, and spends more CPU on each write
/// (docs/adr/0002-own-http-stack.md).
const WRITES: usize = 80;
/// Maximum writes of low priority in flight. The rest is kept for attaches, so that a thousand detaches that end
/// together do not delay the next attach here.
const LOW_PRIORITY_WRITES: usize = 32;

/// Maximum reads of single objects in flight. A burst of Secrets must leave streams of the connection to the writes.
const READS: usize = 64;

const OPEN: &str = "the semaphore must never be closed";

#[derive(Debug)]
pub(super) struct RequestLimiter {
    rate: Option<RateLimit>,
    pub(super) leadership: Leadership,
    pub(super) counts: Requests,
    reads: Semaphore,
    writes: Semaphore,
    low_priority: Semaphore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    Read,
    Write(Priority),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// A pod waits for it (a write of an attach), or all workers (a list).
    High,
    Low,
}

/// The permit for one request in flight, or queued.
#[derive(Debug)]
pub(super) struct RequestPermit<'a> {
    _request: SemaphorePermit<'a>,
    _low_priority: Option<SemaphorePermit<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// Tokens per second.
    pub(crate) qps: f64,
    /// Size of the bucket.
    pub(crate) burst: u32,
}

/// A token bucket for all requests of the process, lists and watches included, like client-go's (`--kube-api-qps`,
/// `--kube-api-burst`).
///
/// Not governor, which supports neither tokio's paused clock nor priorities (docs/adr/0044-libraries-not-used.md).
#[derive(Clone, Debug)]
pub(crate) struct RateLimit(Arc<RateLimitState>);

#[derive(Debug)]
struct RateLimitState {
    /// Held by the first request of low priority in the queue: at most one is ahead of those of high priority.
    low_priority: FairMutex<()>,
    /// Held by the request that gets the next token.
    bucket: FairMutex<TokenBucket>,
}

#[derive(Debug)]
pub(super) struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    counted: Instant,
}

// === impl RequestLimiter ===

impl RequestLimiter {
    pub(super) fn new(rate: Option<RateLimit>, leadership: Leadership, counts: Requests) -> Self {
        Self {
            rate,
            leadership,
            counts,
            reads: Semaphore::new(READS),
            writes: Semaphore::new(WRITES),
            low_priority: Semaphore::new(LOW_PRIORITY_WRITES),
        }
    }

    /// Waits until a request may be sent.
    ///
    /// # Errors
    ///
    /// If it is a write and we do not lead.
    ///
    /// # Cancellation
    ///
    /// Loses the position in the queue.
    pub(super) async fn acquire(&self, kind: RequestKind) -> Result<RequestPermit<'_>, NotLeading> {
        // In this order: a write that waits for a permit of low priority keeps no other permit meanwhile.
        let (low_priority, requests) = match kind {
            RequestKind::Read => (None, &self.reads),
            RequestKind::Write(Priority::High) => (None, &self.writes),
            RequestKind::Write(Priority::Low) => {
                (Some(self.low_priority.acquire().await.expect(OPEN)), &self.writes)
            }
        };
        let request = requests.acquire().await.expect(OPEN);
        if let Some(rate) = &self.rate {
            self.counts.limited(rate.acquire(Priority::Low)).await;
        }
        // After all waits: another replica may have become the leader during them.
        if let RequestKind::Write(_) = kind {
            self.leadership.check()?;
        }
        Ok(RequestPermit {
            _request: request,
            _low_priority: low_priority,
        })
    }
}

// === impl RateLimit ===

impl RateLimit {
    /// Starts with a full bucket.
    pub(crate) fn new(rate: Rate) -> Self {
        Self(Arc::new(RateLimitState {
            low_priority: FairMutex::default(),
            bucket: FairMutex::new(TokenBucket::new(rate, Instant::now())),
        }))
    }

    /// Waits for a token; FIFO among requests of one priority.
    ///
    /// # Cancellation
    ///
    /// Loses the position in the queue, but no token.
    pub(crate) async fn acquire(&self, priority: Priority) {
        let _first = match priority {
            Priority::High => None,
            Priority::Low => Some(self.0.low_priority.lock().await),
        };
        let mut bucket = self.0.bucket.lock().await;
        let wait = bucket.until_next(Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
        }
        bucket.take(Instant::now());
    }
}

// === impl TokenBucket ===

impl TokenBucket {
    pub(super) fn new(rate: Rate, now: Instant) -> Self {
        let burst = f64::from(rate.burst);
        Self {
            per_second: rate.qps,
            burst,
            tokens: burst,
            counted: now,
        }
    }

    pub(super) fn try_take(&mut self, now: Instant) -> bool {
        self.refill(now);
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }

    fn until_next(&mut self, now: Instant) -> Duration {
        self.refill(now);
        let missing = (1.0 - self.tokens).max(0.0);
        Duration::try_from_secs_f64(missing / self.per_second).unwrap_or(Duration::MAX)
    }

    fn take(&mut self, now: Instant) {
        self.refill(now);
        self.tokens -= 1.0;
    }

    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(self.counted).as_secs_f64();
        self.counted = now;
        self.tokens = (self.tokens + since * self.per_second).min(self.burst);
    }
}

#[cfg(test)]
mod tests;
