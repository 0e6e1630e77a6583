//! A limit of the calls in flight that the driver's refusals teach: one instance per node, and one for the driver.
//!
//! A *window* bounds the calls in flight. A refusal while n other calls run shows that the driver takes n; the window grows
//! again while calls succeed and it is in use (AIMD). Two intervals refine a window of one call:
//! - the *early* interval: a driver may lock the node for less than the call takes, so the next call may begin before the
//!   last one has ended;
//! - the *spacing*: it may lock the node for longer than the call takes, or limit the rate of calls.
//!
//! Both are found by bisection between the longest refused and the shortest accepted interval, and then tracked.

mod reason;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::interval::{Interval, NO_INTERVAL};

/// Identifies a call in flight.
pub(super) type CallId = i64;

#[derive(Debug)]
pub(super) struct Limiter {
    /// The longest time after a call during which its lock is searched for.
    longest_lock: Duration,
    calls: BTreeMap<CallId, Call>,
    /// `None` without a limit.
    window: Option<usize>,
    /// Successes since the window changed, while it was in use.
    credit: usize,
    /// The number of windows of successes before the window grows. Doubles with each growth that is refused.
    hold: usize,
    /// Whether the window grows with each success, after an outage.
    slow_start: bool,
    /// Whether a slow start was refused at once: the interval before it was that of a lock and not of an outage.
    locks: bool,
    /// Whether a call succeeded since the limit was learned.
    proven: bool,
    spacing: Interval,
    early: Interval,
    /// The latest begin, admission and end of successful calls.
    last_begin: Option<Instant>,
    last_admitted: Option<Instant>,
    last_end: Option<Instant>,
    /// The call that ended then.
    last_ended: CallId,
    /// The duration of the last successful call.
    duration: Duration,
    /// The duration of the slowest refusal.
    latency: Duration,
}

#[derive(Debug)]
struct Call {
    /// When its sync began, which first writes to the API server.
    admitted: Instant,
    began: Instant,
    sent: bool,
    /// The time since the last begin that was not refused.
    gap: Option<Duration>,
    /// Whether it began while the one call of the window was in flight.
    is_early: bool,
    /// Whether `gap` is known to be accepted.
    learned: bool,
}

/// Whether a call may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    Now,
    At(Instant),
    /// When a call in flight ends.
    AtEnd,
}

/// A window that no workload reaches is no limit.
const MAX_WINDOW: usize = 64;
const MAX_HOLD: usize = 16;
/// Windows of one call grow after this many times `hold` successes.
const SINGLE_CREDIT: usize = 8;
/// Calls that are shorter have no early successor.
const SHORT: Duration = Duration::from_millis(50);
/// A call that is in flight for longer than this, and than four times the slowest refusal, is assumed to be accepted.
const PATIENCE: Duration = Duration::from_millis(100);
/// A lock that lasts longer looks like an outage: a slow start tells them apart.
const LONG_LOCK: Duration = Duration::from_secs(1);
/// A call that ended this long ago may still hold a lock.
pub(super) const JUST_ENDED: Duration = Duration::from_secs(1);
/// The longest lock of a node after a call that is searched for. Longer ones look like failures.
pub(super) const LONGEST_LOCK: Duration = Duration::from_secs(4);

// === impl Limiter ===

impl Limiter {
    pub(super) fn new(longest_lock: Duration) -> Self {
        Self {
            longest_lock,
            calls: BTreeMap::new(),
            window: None,
            credit: 0,
            hold: 1,
            slow_start: false,
            locks: false,
            proven: false,
            spacing: Interval::default(),
            early: Interval::default(),
            last_begin: None,
            last_admitted: None,
            last_end: None,
            last_ended: 0,
            duration: Duration::ZERO,
            latency: Duration::ZERO,
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.calls.len()
    }

    /// The learned number of calls in flight.
    pub(super) fn window(&self) -> Option<usize> {
        self.window
    }

    /// The learned time between the begins of two calls, if calls are paced.
    pub(super) fn interval(&self) -> Option<Duration> {
        let early = Some(self.early.current).filter(|early| self.early.tracks && *early < self.duration);
        let spacing = Some(self.spacing.current).filter(|spacing| !spacing.is_zero());
        self.window.and(early.or(spacing))
    }

    /// Whether a call was sent since the start.
    pub(super) fn was_used(&self) -> bool {
        !self.calls.is_empty() || self.last_end.is_some()
    }

    /// Whether nothing is learned and nothing happened since `then`.
    pub(super) fn is_idle_since(&self, then: Instant) -> bool {
        self.calls.is_empty() && self.last_end.is_none_or(|end| end < then)
    }

    /// Whether a call may begin.
    pub(super) fn permit(&mut self, now: Instant) -> Permit {
        let Some(window) = self.window else {
            return Permit::Now;
        };
        // Counted from the admission, so that the calls have this interval after equally long writes.
        let newest = self.calls.values().map(|call| call.admitted).max();
        let last = newest.max(self.last_admitted);
        let spaced = last.map(|last| last + self.spacing.current);
        let mut at = spaced.filter(|_| !self.spacing.current.is_zero());
        if self.calls.len() >= window {
            if window > 1 || !self.proven || self.early.current.is_zero() {
                return Permit::AtEnd;
            }
            let oldest = self.calls.values().map(|call| call.began).min();
            let newest = self.calls.values().max_by_key(|call| call.began);
            let hangs = oldest.map(|oldest| oldest + 2 * self.duration + LONG_LOCK);
            if hangs.is_some_and(|hangs| hangs <= now) {
                return Permit::AtEnd;
            }
            let patience = PATIENCE.max(4 * self.latency);
            let known = newest
                .filter(|call| !call.learned)
                .map(|call| call.began + patience);
            if known.is_some_and(|known| known <= now) {
                self.learn_from_newest();
            }
            let early = last.map(|last| last + self.early.current);
            at = at.max(early);
            // The interval may be shorter once the newest call counts as accepted.
            if let Some(known) = known.filter(|known| *known > now && at > Some(now)) {
                at = at.min(Some(known));
            }
        }
        at.filter(|at| *at > now).map_or(Permit::Now, Permit::At)
    }

    /// A call is prepared, or sent.
    pub(super) fn begin(&mut self, id: CallId, sent: bool, now: Instant) {
        let prepared = self.calls.remove(&id).filter(|call| !call.sent);
        let gap = self.window.and_then(|_| self.last_start());
        let call = Call {
            admitted: prepared.map_or(now, |call| call.admitted),
            began: now,
            sent,
            gap: gap.map(|last| now.saturating_duration_since(last)),
            is_early: self.window == Some(1) && !self.calls.is_empty(),
            learned: false,
        };
        self.calls.insert(id, call);
    }

    /// The end of a call whose result says nothing about the limit.
    pub(super) fn forget(&mut self, id: CallId) {
        self.calls.remove(&id);
    }

    pub(super) fn succeeded(&mut self, id: CallId, now: Instant) {
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let was_in_use = self.window.is_some_and(|window| self.calls.len() + 1 >= window);
        self.last_begin = self.last_begin.max(Some(call.began));
        self.last_admitted = self.last_admitted.max(Some(call.admitted));
        self.last_end = Some(now);
        self.last_ended = id;
        self.duration = now.saturating_duration_since(call.began);
        self.proven = true;
        let Some(window) = self.window else {
            return;
        };
        if !call.learned {
            self.learn(&call);
        }
        if window == 1 && self.early.high.is_none() && self.duration >= SHORT {
            self.early.bound(self.duration);
        }
        if was_in_use && self.window == Some(window) {
            self.grow(window);
        }
    }

    fn grow(&mut self, window: usize) {
        self.credit += 1;
        let needed = match window {
            _ if self.slow_start => 1,
            // The early interval allows more than a window of two would.
            1 if self.early.tracks && self.early.current < self.duration => return,
            1 => SINGLE_CREDIT * self.hold,
            _ => window * self.hold,
        };
        if self.credit < needed {
            return;
        }
        self.credit = 0;
        let step = if self.slow_start { 1 } else { (window / 4).max(1) };
        if window + step > MAX_WINDOW {
            return self.unlearn();
        }
        if window > 4 && self.slow_start {
            // It was an outage.
            self.spacing = Interval::default();
            self.locks = false;
        }
        self.window = Some(window + step);
    }

    /// A refusal because of other calls. That of a call that is `repeated` lowers no window of more than one call, as the call
    /// may fail for a reason of its own.
    pub(super) fn refused(&mut self, id: CallId, repeated: bool, now: Instant) {
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let latency = now.saturating_duration_since(call.began);
        if repeated && self.window.is_none_or(|window| window > 1) {
            return;
        }
        self.latency = self.latency.max(latency).min(LONG_LOCK);
        let others = self.calls.values().filter(|other| other.sent).count();
        let overlapped = self.last_end >= Some(call.began);
        // Without the number of calls that succeeded meanwhile, half of the window.
        let window = match self.window {
            Some(before) if others == 0 && overlapped => (before / 2).max(1),
            Some(_) | None => others.max(1),
        };
        match self.window {
            None => {
                self.hold = 1;
                self.proven = false;
                self.window = Some(window);
            }
            Some(before) => {
                if before > 1 {
                    self.hold = (2 * self.hold).clamp(1, MAX_HOLD);
                }
                self.window = Some(before.min(window));
            }
        }
        self.credit = 0;
        if std::mem::take(&mut self.slow_start) && self.spacing.high.is_some() {
            self.locks = true;
            self.spacing.bisect();
            return;
        }
        if self.window != Some(1) {
            return;
        }
        if others > 0 {
            if let Some(gap) = call.gap.filter(|_| call.is_early) {
                self.early.refused(gap);
            }
        } else if !overlapped && let Some(last) = self.last_begin {
            self.spacing.refused(call.began.saturating_duration_since(last));
        }
    }

    /// Ends the limit, and grows it from two calls in flight: the driver has just come up.
    pub(super) fn start_slowly(&mut self) {
        self.unlearn();
        self.window = Some(2);
        self.hold = 1;
        self.slow_start = true;
        self.proven = true;
    }

    /// Ends a limit whose calls were all refused: the calls in flight were not the reason.
    pub(super) fn unlearn_if_unproven(&mut self) {
        if !self.proven {
            self.unlearn();
        }
    }

    fn unlearn(&mut self) {
        self.window = None;
        self.credit = 0;
        self.slow_start = false;
        self.locks = false;
        self.spacing = Interval::default();
        self.early = Interval::default();
    }

    fn last_start(&self) -> Option<Instant> {
        let newest = self.calls.values().map(|call| call.began).max();
        newest.max(self.last_begin)
    }

    fn learn_from_newest(&mut self) {
        let newest = self.calls.iter().max_by_key(|(_, call)| call.began);
        if let Some(id) = newest.map(|(id, _)| *id)
            && let Some(call) = self.calls.remove(&id)
        {
            self.learn(&call);
            self.calls.insert(
                id,
                Call {
                    learned: true,
                    ..call
                },
            );
        }
    }

    /// The interval of `call` was accepted.
    fn learn(&mut self, call: &Call) {
        let Some(gap) = call.gap else {
            return;
        };
        if call.is_early {
            self.early.accepted(gap);
            if self.early.current < NO_INTERVAL {
                // The node takes several calls at once.
                self.early = Interval::default();
                self.window = Some(self.calls.len().max(2));
                self.hold = 1;
            }
        }
        let spacing = &mut self.spacing;
        if spacing.current.is_zero() {
            return;
        }
        if spacing.high.is_none() && gap >= LONG_LOCK && !self.locks {
            spacing.high = Some(gap);
            spacing.current = Duration::ZERO;
            self.window = Some(2);
            self.slow_start = true;
        } else {
            spacing.accepted(gap);
        }
    }
}
