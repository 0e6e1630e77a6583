//! Which key runs next, and the calls of running ones.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::flow_control::{ABORTED, Blocked, Ended};
use super::lane::Node;
use super::{Entry, Finished, Key, Lane, Outcome, Queue, Stage};

/// Contention is reported in the object's status if it lasts, in this period.
pub(super) const REPORT_PERIOD: Duration = Duration::from_secs(15);

// === impl Queue ===

impl Queue {
    /// Sets the time, and moves keys whose backoff has ended into their lanes. While the driver is down, only one key at a
    /// time probes it, even before the end of its backoff and beside ready keys, which may not call it.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = now;
        let mut held = Vec::new();
        let down = self.flow.next_probe();
        while let Some(first) = self.waiting.first_entry().filter(|first| first.key().0 <= now) {
            let (until, key) = first.remove_entry();
            if self.flow.only_probes() && self.waits_for_driver(&key) {
                held.push((until, key));
            } else {
                self.end_backoff(&key);
            }
        }
        self.waiting.extend(held);
        if down.is_some_and(|probe| probe <= now)
            && !self.probing.as_ref().is_some_and(|key| self.is_ready(key))
        {
            let mut waiting = self.waiting.values();
            self.probing = waiting.find(|key| self.waits_for_driver(key)).cloned();
            if let Some(key) = self.probing.clone() {
                self.end_backoff(&key);
            }
        }
        while let Some((at, node)) = self.node_permits.pop_first() {
            if at > now {
                self.node_permits.insert((at, node));
                break;
            }
            self.place(&node);
        }
        self.flow.sweep(now);
    }

    fn is_ready(&self, key: &Key) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| matches!(entry.stage, Stage::Ready { .. }))
    }

    fn end_backoff(&mut self, key: &Key) {
        if let Some(failures) = self.failures_mut(key) {
            failures.wakes = 0;
        }
        self.enqueue_if_pending(key, &Lane::ALL);
    }

    /// When [`Queue::advance`] is next worth calling.
    pub(crate) fn next_advance(&self) -> Option<Instant> {
        let probe = self.flow.next_probe();
        // While the driver is down, keys that wait for it are waiting even after the end of their backoff.
        let mut waiting = match probe {
            None => self.waiting.range(..),
            Some(_) => self.waiting.range((self.now, i64::MAX)..),
        };
        let waiting = waiting.next().map(|((until, _), _)| *until);
        let probe = probe.filter(|probe| *probe > self.now && !self.waiting.is_empty());
        let node = self.node_permits.first().map(|(at, _)| *at);
        [waiting, probe, node, self.driver_permit]
            .into_iter()
            .flatten()
            .min()
    }

    /// Updates the place of a node's keys after a change of its limit or its calls in flight.
    fn place(&mut self, node: &Node) {
        let in_flight = self.flow.in_flight(node.as_ref());
        for lane in &mut self.lanes {
            lane.place(node, in_flight);
        }
    }

    /// Returns the next key of a lane with a free slot.
    pub(crate) fn start(&mut self) -> Option<(Key, Lane)> {
        self.driver_permit = None;
        let lanes = Lane::ALL.into_iter().cycle();
        let after_served = lanes.skip(self.served as usize + 1).take(Lane::ALL.len());
        for lane in after_served {
            if let Some(key) = self.start_in(lane) {
                self.served = lane;
                return Some((key, lane));
            }
        }
        None
    }

    fn start_in(&mut self, lane: Lane) -> Option<Key> {
        let queue = &self.lanes[lane as usize];
        let calls = Lane::CALLING
            .iter()
            .map(|lane| self.lanes[*lane as usize].running);
        let calls_are_full = self.max_driver_calls > 0 && calls.sum::<usize>() >= self.max_driver_calls;
        if queue.running >= queue.limit || lane != Lane::PersistentVolume && calls_are_full {
            return None;
        }
        let (sequence, node) = loop {
            let (sequence, node) = self.lanes[lane as usize].first()?;
            let permit = node
                .as_ref()
                .map_or(Ok(()), |node| self.flow.permit(node, self.now));
            match permit {
                Ok(()) => break (sequence, node),
                Err(Blocked::Driver(at)) => {
                    self.driver_permit = at;
                    return None;
                }
                Err(Blocked::Node(at)) => {
                    self.lanes[lane as usize].block(&node);
                    self.node_permits.extend(at.map(|at| (at, node)));
                }
            }
        };
        let in_flight = self.flow.in_flight(node.as_ref());
        let queue = &mut self.lanes[lane as usize];
        let key = queue.remove(&node, sequence, in_flight)?;
        queue.running += 1;
        let entry = self.entries.get_mut(&key)?;
        if let Stage::Ready { since, .. } = entry.stage {
            let waited = self.now.saturating_duration_since(since);
            queue.metrics.waited.observe(waited.as_secs_f64());
        }
        entry.stage = Stage::Running {
            dirty: false,
            since: self.now,
            sequence,
            contended: false,
        };
        if let Some(name) = &node {
            self.flow.begin(name, sequence, false, self.now);
            self.place(&node);
        }
        Some(key)
    }

    /// Ends the run of `key`, which leaves the queue. The caller enqueues it again if necessary.
    pub(crate) fn finish(&mut self, key: &Key) -> Finished {
        // Of a sync without a call.
        self.call_ended(key, Outcome::Unrelated);
        let Some(&Entry {
            lane,
            stage:
                Stage::Running {
                    dirty,
                    since,
                    sequence,
                    contended,
                },
            ..
        }) = self.entries.get(key)
        else {
            return Finished::default();
        };
        let queue = &mut self.lanes[lane as usize];
        queue.running -= 1;
        let worked = self.now.saturating_duration_since(since);
        queue.metrics.worked.observe(worked.as_secs_f64());
        let entry = self.entries.remove(key);
        let (node, failures) = entry.map_or((None, None), |entry| (entry.node, entry.failures));
        Finished {
            dirty,
            failures,
            node,
            sequence,
            contended,
        }
    }

    /// The sync of `key` calls the driver, unless that is too early: then returns when it may.
    #[must_use]
    pub(crate) fn call_begins(&mut self, key: &Key) -> Option<Instant> {
        let (node, sequence) = self.running_for(key)?;
        let at = self
            .flow
            .call_at(&node, sequence, self.now)
            .filter(|at| *at > self.now);
        if at.is_none() {
            self.flow.begin(&node, sequence, true, self.now);
        }
        at
    }

    /// The call ended. Lets keys go on that waited for the node or the driver to work again.
    pub(crate) fn call_ended(&mut self, key: &Key, outcome: Outcome) {
        let Some((node, sequence)) = self.running_for(key) else {
            return;
        };
        // An earlier call of the key, which the driver still executes, is the reason, and not those of others.
        let is_pending = outcome == Outcome::Failed(ABORTED)
            && self.failures(key).is_some_and(|failures| failures.executes);
        let outcome = if is_pending { Outcome::Unrelated } else { outcome };
        let failures = self.entries.get(key).and_then(|entry| entry.failures.as_ref());
        let ended = self.flow.end(&node, sequence, outcome, failures, self.now);
        if let Some(entry) = self.entries.get_mut(key)
            && let Stage::Running { contended, .. } = &mut entry.stage
            && outcome != Outcome::Unrelated
        {
            *contended = ended == Ended::Contended;
        }
        match ended {
            Ended::DriverRecovered => self.end_backoff_of(None),
            Ended::NodeRecovered => self.end_backoff_of(Some(&node)),
            Ended::Contended | Ended::Other => {}
        }
        self.place(&Some(node));
    }

    /// Whether the driver's limit explains a first refusal of the running `key`.
    pub(crate) fn is_refused_by_driver(&self, key: &Key) -> bool {
        self.failures(key).is_none_or(|failures| failures.turns == 0)
            && self
                .running_for(key)
                .is_some_and(|(_, sequence)| self.flow.driver_explains(sequence))
    }

    fn running_for(&self, key: &Key) -> Option<(Arc<str>, i64)> {
        let entry = self.entries.get(key)?;
        match entry.stage {
            Stage::Running { sequence, .. } => Some((entry.node.clone()?, sequence)),
            Stage::Ready { .. } | Stage::Waiting { .. } => None,
        }
    }

    /// Whether the failure of the running `key` is not worth a report yet: its call was refused because of other calls.
    pub(crate) fn defers_report(&self, key: &Key) -> bool {
        let entry = self.entries.get(key);
        entry.is_some_and(|entry| {
            matches!(entry.stage, Stage::Running { contended: true, .. })
                && entry.failures.as_ref().is_none_or(|failures| {
                    let reported = failures.reported.unwrap_or(failures.since);
                    self.now.saturating_duration_since(reported) < REPORT_PERIOD
                })
        })
    }
}
