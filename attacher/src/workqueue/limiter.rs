//! A limit of the calls in flight that the driver's refusals teach: one instance per node, and one for the driver.
//!
//! A *window* bounds the calls in flight. A refusal while n other calls run shows that the driver takes n; the window grows
//! again while calls succeed and it is in use (AIMD). A window of one call has an *interval* between the begins of two calls
//! besides: a lock may last for less than the call, so that the next call may begin before the last one has ended, or for
//! longer than the call, or the driver limits the rate of calls.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::interval::Interval;

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
    /// The number of windows of successes before the window grows; 0 after an outage: each success lets it grow. Doubles
    /// with each growth that is refused.
    hold: usize,
    /// Whether a call succeeded since the limit was learned.
    proven: bool,
    interval: Interval,
    /// Whether the end of a call does not permit the next one before the interval has passed.
    outlasts_call: bool,
    /// The latest begin, admission and end of successful calls.
    last_begin: Option<Instant>,
    last_admitted: Option<Instant>,
    last_end: Option<Instant>,
    /// The call that ended then.
    last_ended: CallId,
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
/// A call that is in flight for longer than this, and than four times the slowest refusal, is assumed to be accepted.
const PATIENCE: Duration = Duration::from_millis(150);
const SLOWEST_REFUSAL: Duration = Duration::from_secs(1);
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
            proven: false,
            interval: Interval::default(),
            outlasts_call: false,
            last_begin: None,
            last_admitted: None,
            last_end: None,
            last_ended: 0,
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
        let interval = Some(self.interval.current);
        interval.filter(|_| self.window == Some(1) && self.interval.high.is_some())
    }

    /// Whether a call was sent since the start.
    pub(super) fn was_used(&self) -> bool {
        !self.calls.is_empty() || self.last_end.is_some()
    }

    /// Whether nothing happened since `then`.
    pub(super) fn is_idle_since(&self, then: Instant) -> bool {
        self.calls.is_empty() && self.last_end.is_none_or(|end| end < then)
    }

    /// Whether a call may begin.
    pub(super) fn permit(&mut self, now: Instant) -> Permit {
        match self.window {
            None => Permit::Now,
            Some(1) => self.permit_next(now),
            Some(window) if self.calls.len() < window => Permit::Now,
            Some(_) => Permit::AtEnd,
        }
    }

    /// Whether a call may begin, of a window of one call.
    fn permit_next(&mut self, now: Instant) -> Permit {
        let newest = self.calls.iter().max_by_key(|(_, call)| call.began);
        let newest = newest.map(|(id, call)| (*id, call.sent, call.learned, call.began));
        let mut at = None;
        match newest {
            None if !self.outlasts_call => return Permit::Now,
            None => {}
            Some(_) if self.outlasts_call || self.interval.tracks => {}
            // It has not begun.
            Some((_, false, ..)) => return Permit::AtEnd,
            Some((id, _, learned, began)) => {
                let accepted = began + PATIENCE.max(4 * self.latency);
                if accepted <= now && !learned {
                    self.learn(id);
                }
                at = Some(accepted);
            }
        }
        // Counted from the admission, so that the calls have this interval after equally long writes.
        let newest = self.calls.values().map(|call| call.admitted).max();
        let last = newest.max(self.last_admitted);
        let at = at.max(last.map(|last| last + self.interval.current));
        at.filter(|at| *at > now).map_or(Permit::Now, Permit::At)
    }

    /// A call is prepared, or sent.
    pub(super) fn begin(&mut self, id: CallId, sent: bool, now: Instant) {
        let prepared = self.calls.remove(&id).filter(|call| !call.sent);
        let sent_calls = self.calls.values().filter(|call| call.sent);
        let last = sent_calls.map(|call| call.began).max().max(self.last_begin);
        let call = Call {
            admitted: prepared.map_or(now, |call| call.admitted),
            began: now,
            sent,
            gap: last.map(|last| now.saturating_duration_since(last)),
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
        self.learn(id);
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let was_in_use = self.window.is_some_and(|window| self.calls.len() + 1 >= window);
        self.last_begin = self.last_begin.max(Some(call.began));
        self.last_admitted = self.last_admitted.max(Some(call.admitted));
        self.last_end = Some(now);
        self.last_ended = id;
        self.proven = true;
        if let Some(window) = self.window
            && was_in_use
        {
            self.grow(window);
        }
    }

    fn grow(&mut self, window: usize) {
        self.credit += 1;
        let needed = match window {
            // The interval allows more.
            1 if self.interval.high.is_some() => return,
            1 if self.hold > 0 => SINGLE_CREDIT * self.hold,
            _ => window * self.hold,
        };
        if self.credit < needed {
            return;
        }
        self.credit = 0;
        let step = if self.hold == 0 { 1 } else { (window / 4).max(1) };
        self.window = Some(window + step);
        if window + step > MAX_WINDOW {
            self.unlearn();
        }
    }

    /// A refusal because of other calls. That of a call that is `repeated` lowers no window of more than one call, as the call
    /// may fail for a reason of its own.
    pub(super) fn refused(&mut self, id: CallId, repeated: bool, now: Instant) {
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        if repeated && self.window.is_none_or(|window| window > 1) {
            return;
        }
        let latency = now.saturating_duration_since(call.began);
        self.latency = self.latency.max(latency).min(SLOWEST_REFUSAL);
        let others = self.calls.values().filter(|other| other.sent).count();
        let overlapped = self.last_end >= Some(call.began);
        let before = self.window.unwrap_or(usize::MAX);
        // Without the number of calls that succeeded meanwhile, half of the window.
        let window = match others {
            0 if overlapped && self.window.is_some() => before / 2,
            others => others.min(before),
        };
        match self.window {
            None => {
                (self.hold, self.proven) = (1, false);
                self.interval = Interval::default();
            }
            Some(1) => {}
            Some(_) => self.hold = (2 * self.hold).clamp(1, MAX_HOLD),
        }
        self.window = Some(window.max(1));
        self.credit = 0;
        if window > 1 || overlapped {
            return;
        }
        self.outlasts_call |= others == 0;
        if let Some(gap) = call.gap.filter(|_| call.is_early || others == 0) {
            self.interval.refused(gap);
        }
    }

    /// Ends the limit, and grows it from two calls in flight: the driver has just come up.
    pub(super) fn start_slowly(&mut self) {
        self.unlearn();
        self.window = Some(2);
        self.hold = 0;
        self.proven = true;
    }

    /// Ends a limit whose calls were all refused, or that searches for the end of a lock: a refusal without other calls shows
    /// that they were not the reason.
    pub(super) fn unlearn_if_unexplained(&mut self) {
        if !self.proven || self.outlasts_call && self.interval.high.is_none() {
            self.unlearn();
        }
    }

    pub(super) fn unlearn(&mut self) {
        self.window = None;
        self.credit = 0;
        self.interval = Interval::default();
        self.outlasts_call = false;
    }

    /// The interval before this call was accepted.
    fn learn(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        let gap = call.gap.filter(|_| !std::mem::replace(&mut call.learned, true));
        let Some(gap) = gap.filter(|_| self.window.is_none_or(|window| window == 1)) else {
            return;
        };
        if self.window.is_none() {
            self.interval.high = Some(self.interval.high.map_or(gap, |high| high.min(gap)));
        } else if !call.is_early && !self.outlasts_call {
            // The call before had ended, which suffices.
            self.interval.bound(gap);
        } else {
            self.interval.accepted(gap);
            if self.interval.is_none() || gap > 2 * self.longest_lock {
                // The node takes several calls at once, or the lock was an outage.
                self.unlearn();
            }
        }
    }

    // === the reasons of a refusal ===

    /// Whether other calls, not an earlier one of the same sync, may be the reason of the refusal of this one: one was in
    /// flight meanwhile or, unless the code is final, has just ended.
    pub(super) fn is_contended(&self, id: CallId, is_final: bool) -> bool {
        let Some(call) = self.calls.get(&id) else {
            return false;
        };
        let lock = match self.window {
            _ if is_final => Duration::ZERO,
            Some(_) => (2 * self.interval.current).clamp(JUST_ENDED, self.longest_lock),
            None => JUST_ENDED,
        };
        let ended = self.last_end.filter(|_| self.last_ended != id);
        let is_other = |(other, call): (&CallId, &Call)| *other != id && call.sent;
        self.calls.iter().any(is_other) || ended.is_some_and(|end| end + lock >= call.began)
    }

    /// Whether the limit explains its refusal: what was accepted before is not refused.
    pub(super) fn explains(&self, id: CallId) -> bool {
        let gap = self.calls.get(&id).and_then(|call| call.gap);
        match self.window {
            Some(window) if !self.proven || self.calls.len() > window => true,
            None | Some(1) => gap.is_none_or(|gap| self.interval.explains(gap)),
            Some(_) => false,
        }
    }

    /// Whether no call was in flight besides this one, and none succeeded shortly before or meanwhile.
    pub(super) fn is_alone(&self, id: CallId) -> bool {
        !self.is_contended(id, false)
    }

    /// Whether a call succeeded while this one was in flight.
    pub(super) fn succeeded_during(&self, id: CallId) -> bool {
        self.calls
            .get(&id)
            .is_some_and(|call| self.last_end >= Some(call.began))
    }
}
