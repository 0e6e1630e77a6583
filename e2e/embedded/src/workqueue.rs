//! A work queue of keys with a backoff per key, like client-go's rate limiting queue. The time is an
//! argument.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

/// Keys that are due, and keys in backoff.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    ready: VecDeque<T>,
    queued: BTreeSet<T>,
    delayed: BTreeMap<T, Instant>,
    failures: BTreeMap<T, u32>,
    base: Duration,
    max: Duration,
}

// === impl WorkQueue ===

impl<T: Clone + Ord> WorkQueue<T> {
    /// A queue that requeues failed keys after `base`, doubled up to `max`.
    pub(crate) fn new(base: Duration, max: Duration) -> Self {
        Self {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            delayed: BTreeMap::new(),
            failures: BTreeMap::new(),
            base,
            max,
        }
    }

    /// Adds a key, unless it is queued.
    pub(crate) fn add(&mut self, key: T) {
        self.delayed.remove(&key);
        if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    /// Adds a key, unless it is in backoff.
    pub(crate) fn add_unless_delayed(&mut self, key: T) {
        if !self.delayed.contains_key(&key) {
            self.add(key);
        }
    }

    /// Adds a key whose sync failed once its backoff expires.
    pub(crate) fn add_rate_limited(&mut self, key: T, now: Instant) {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = self.base.saturating_mul(1 << (*failures).min(20)).min(self.max);
        *failures += 1;
        self.delayed.insert(key, now + delay);
    }

    /// The sync of the key succeeded: resets its backoff.
    pub(crate) fn forget(&mut self, key: &T) {
        self.failures.remove(key);
    }

    /// The next key that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<T> {
        let due: Vec<T> = self
            .delayed
            .iter()
            .filter(|(_, due)| **due <= now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            self.add(key);
        }
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        Some(key)
    }

    /// When the next delayed key is due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.delayed.values().min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_keys_are_requeued_with_exponential_backoff() {
        let mut queue = WorkQueue::new(Duration::from_secs(1), Duration::from_secs(3));
        let mut now = Instant::now();
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.pop(now), Some("a"));
        assert_eq!(queue.pop(now), None, "queued once");
        for delay in [1, 2, 3, 3] {
            queue.add_rate_limited("a", now);
            queue.add_unless_delayed("a");
            assert_eq!(queue.pop(now), None);
            now += Duration::from_secs(delay);
            assert_eq!(queue.next_due(), Some(now));
            assert_eq!(queue.pop(now), Some("a"));
        }
        queue.forget(&"a");
        queue.add_rate_limited("a", now);
        assert_eq!(queue.next_due(), Some(now + Duration::from_secs(1)));
    }
}
