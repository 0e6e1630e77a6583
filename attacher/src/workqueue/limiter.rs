//! A limit of the calls in flight that the driver's refusals teach: one instance per node, and one for the driver.
//!
//! A *window* bounds the calls in flight: a refusal while n other calls run shows that the driver takes n. It grows while calls
//! succeed and it is in use (AIMD). From a window of one call, another one may begin after an *interval*, as a call may lock
//! the node for a part of its duration. A refusal without other calls shows that the lock outlasts the call, or that the
//! driver limits the rate: then only the interval counts.

mod suspects;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::interval::Interval;
use suspects::Suspects;

/// Identifies a call in flight.
pub(super) type CallId = i64;

#[derive(Debug)]
pub(super) struct Limiter {
    /// The longest time after a call during which its lock is searched for.
    longest_lock: Duration,
    calls: BTreeMap<CallId, Call>,
    /// `None` without a limit.
    window: Option<usize>,
    /// Slow start: nothing was refused, and the window grows with each accepted call.
    is_start: bool,
    /// The last refusal, or growth.
    changed: Option<Instant>,
    interval: Interval,
    /// The longest time without calls from the end of the last one on, whatever the interval: twice the longest after which a call
    /// was refused.
    max_idle: Duration,
    /// Whether only the interval permits the next call.
    outlasts_call: bool,
    /// The latest admission, begin and end of successful calls.
    last_admitted: Option<Instant>,
    last_began: Option<Instant>,
    last_end: Option<Instant>,
    /// The call that ended then, and how long it took.
    last_ended: CallId,
    took: Duration,
    /// The duration of the slowest refusal, less what calls one at a time have disproved of it.
    latency: Duration,
    /// Whether calls of all nodes are limited.
    of_driver: bool,
    suspects: Suspects,
}

#[derive(Debug)]
struct Call {
    /// When its sync began, which first writes to the API server.
    admitted: Instant,
    began: Instant,
    sent: bool,
    /// The time since the begin of the last call that was not refused.
    gap: Option<Duration>,
    /// Whether the interval permitted it.
    is_paced: bool,
    /// Whether it is known not to be refused.
    is_accepted: bool,
}

/// A window that no workload reaches is no limit.
const MAX_WINDOW: usize = 64;
/// A call that is in flight for longer than this, and than four times the slowest refusal, is assumed to be accepted.
const PATIENCE: Duration = Duration::from_millis(150);
const SLOWEST_REFUSAL: Duration = Duration::from_secs(1);
/// Shorter intervals are none.
const NO_INTERVAL: Duration = Duration::from_millis(2);
/// A call that ended this long ago may still hold a lock.
pub(super) const JUST_ENDED: Duration = Duration::from_secs(1);
/// The longest lock of a node after a call that is searched for. Longer ones look like failures.
pub(super) const LONGEST_LOCK: Duration = Duration::from_secs(4);

// === impl Limiter ===

impl Limiter {
    pub(super) fn of_node() -> Self {
        Self::new(false, LONGEST_LOCK)
    }

    pub(super) fn of_driver() -> Self {
        Self::new(true, JUST_ENDED)
    }

    fn new(of_driver: bool, longest_lock: Duration) -> Self {
        Self {
            longest_lock,
            calls: BTreeMap::new(),
            window: None,
            is_start: false,
            changed: None,
            interval: Interval::default(),
            max_idle: JUST_ENDED,
            outlasts_call: false,
            last_admitted: None,
            last_began: None,
            last_end: None,
            last_ended: 0,
            took: Duration::ZERO,
            latency: Duration::ZERO,
            of_driver,
            suspects: Suspects::new(!of_driver),
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.calls.len()
    }

    /// The learned number of calls in flight.
    pub(super) fn window(&self) -> Option<usize> {
        self.window.filter(|_| !self.is_start)
    }

    /// The learned time between two calls, if calls are paced.
    pub(super) fn interval(&self) -> Option<Duration> {
        let is_paced = self.window() == Some(1) && self.interval.high.is_some();
        is_paced.then_some(self.interval.current)
    }

    /// Whether only the interval permits the next call.
    pub(super) fn outlasts_call(&self) -> bool {
        self.outlasts_call
    }

    /// Whether a call was sent since the start.
    pub(super) fn was_used(&self) -> bool {
        !self.calls.is_empty() || self.last_end.is_some()
    }

    pub(super) fn is_idle_for(&self, idle: Duration, now: Instant) -> bool {
        self.calls.is_empty() && self.last_end.is_none_or(|end| end + idle < now)
    }

    /// Whether a call may begin; else, when that is worth checking again. `None`: when a call begins or ends.
    pub(super) fn permit(&mut self, now: Instant) -> Result<(), Option<Instant>> {
        let patience = PATIENCE.max(4 * self.latency);
        if self.window.is_none() {
            return Ok(());
        }
        let accepted = |call: &Call| call.sent && !call.is_accepted && call.began + patience <= now;
        let accepted = self.calls.iter().filter(|(_, call)| accepted(call));
        let accepted: Vec<_> = accepted.map(|(id, _)| *id).collect();
        for id in accepted {
            self.accept(id);
        }
        let newest = self.calls.values().max_by_key(|call| call.admitted);
        let unknown = newest.map(|call| call.began + patience);
        let admitted = newest.map(|call| call.admitted).max(self.last_admitted);
        let is_idle = self.calls.is_empty();
        let paced = admitted.map(|admitted| self.paced(admitted, is_idle));
        let at = match self.window {
            _ if self.outlasts_call => paced,
            window if window.is_none_or(|window| self.calls.len() < window) => None,
            // Calls that end before they are known to be accepted would be sent one by one.
            Some(1) if self.interval.accepted >= 2 => paced,
            Some(1) => paced.max(unknown),
            _ if self.is_start => unknown,
            _ => return Err(None),
        };
        match at.filter(|at| *at > now) {
            Some(at) => Err(Some(at)),
            None => Ok(()),
        }
    }

    /// When the call of an admitted sync may be sent, if that is limited. The limit may be newer than the admission, and writes
    /// before the call take different times, so that calls would have other intervals than admissions.
    pub(super) fn call_at(&self, id: CallId, now: Instant) -> Option<Instant> {
        let window = self.window()?;
        if self.calls.get(&id).is_some_and(|call| call.sent) {
            return None;
        }
        let in_flight = self.sent().count();
        let at = if self.outlasts_call || window == 1 && in_flight > 0 {
            self.paced(self.last_call()?, in_flight == 0)
        } else if in_flight >= window {
            now + self.interval.current
        } else {
            return None;
        };
        // The calls in flight may end before that.
        Some(at.min(now + self.max_idle))
    }

    /// When the interval permits a call after the begin of the last one. After a long call it alone would keep the node idle for the
    /// call's length.
    fn paced(&self, last: Instant, is_idle: bool) -> Instant {
        let at = last + self.interval.current;
        let end = self.last_end.filter(|_| is_idle);
        end.map_or(at, |end| at.min(end + self.max_idle))
    }

    fn sent(&self) -> impl Iterator<Item = (&CallId, &Call)> {
        self.calls.iter().filter(|(_, call)| call.sent)
    }

    fn last_call(&self) -> Option<Instant> {
        self.sent().map(|(_, call)| call.began).max().max(self.last_began)
    }

    /// A call is prepared, or sent.
    pub(super) fn begin(&mut self, id: CallId, sent: bool, now: Instant) {
        let prepared = self.calls.remove(&id).filter(|call| !call.sent);
        let call = Call {
            admitted: prepared.map_or(now, |call| call.admitted),
            began: now,
            sent,
            gap: self.last_call().map(|last| now.saturating_duration_since(last)),
            is_paced: self.outlasts_call || self.window == Some(1) && self.sent().next().is_some(),
            is_accepted: false,
        };
        self.calls.insert(id, call);
    }

    /// The end of a call whose result says nothing about the limit. Returns whether it was in flight.
    pub(super) fn forget(&mut self, id: CallId) -> bool {
        self.calls.remove(&id).is_some()
    }

    pub(super) fn succeeded(&mut self, id: CallId, now: Instant) {
        self.accept(id);
        let Some(call) = self.calls.remove(&id) else {
            return;
        };
        let unchanged = PATIENCE.max(2 * now.saturating_duration_since(call.began));
        // One slow refusal must not keep calls apart for ever.
        if self.window == Some(1) && !call.is_paced {
            self.latency = self.latency.mul_f64(0.9);
        }
        if let Some(window) = self.window
            && self.calls.len() + 1 >= window
            && !(window == 1 && self.interval.high.is_some())
            && self.changed.is_none_or(|changed| changed + unchanged <= now)
        {
            self.changed = Some(now);
            self.grow(window);
        }
        self.last_admitted = self.last_admitted.max(Some(call.admitted));
        self.last_began = self.last_began.max(Some(call.began));
        self.last_end = Some(now);
        self.last_ended = id;
        self.took = now.saturating_duration_since(call.began);
    }

    /// A call was not refused.
    fn accept(&mut self, id: CallId) {
        let Some(call) = self.calls.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut call.is_accepted, true) {
            return;
        }
        // What was admitted before a refusal had an interval that is no more in use.
        let is_paced = call.is_paced && self.changed < Some(call.began);
        let (gap, began) = (call.gap, call.began);
        self.suspects.accepted(id);
        self.refute();
        match (self.window, gap) {
            (Some(window), _) if self.is_start => self.grow(window),
            (_, None) => {}
            (None, Some(gap)) => {
                self.interval.high = Some(self.interval.high.map_or(gap, |high| high.min(gap)));
            }
            (Some(_), Some(gap)) if is_paced => {
                self.interval.accepted(gap);
                if self.interval.current < NO_INTERVAL || gap > 2 * (self.longest_lock + self.took) {
                    // The driver takes several calls at once, or the lock was an outage.
                    self.unlearn();
                }
            }
            // The call before had ended, which suffices.
            (Some(_), Some(gap)) if self.changed < Some(began) => self.interval.bound(gap),
            (Some(_), Some(_)) => {}
        }
    }

    fn grow(&mut self, window: usize) {
        self.window = Some(window + 1);
        if window >= MAX_WINDOW {
            self.unlearn();
        }
    }

    /// A refusal because of other calls. Returns whether it teaches the limit: that of a call that is `repeated` lowers no window of
    /// more than one call, as the call may fail for a reason of its own.
    pub(super) fn refused(&mut self, id: CallId, repeated: bool, now: Instant) -> bool {
        let Some(call) = self.calls.remove(&id) else {
            return false;
        };
        if self.teaches_nothing(id, repeated, call.began) || repeated && self.window() != Some(1) {
            return false;
        }
        let latency = now.saturating_duration_since(call.began);
        self.latency = self.latency.max(latency).min(SLOWEST_REFUSAL);
        // The others that were admitted before it was known say the same.
        let is_first = self.changed < Some(call.began);
        if is_first {
            self.changed = Some(now);
        }
        let others = self.sent().count();
        let overlapped = self.last_end >= Some(call.began);
        let before = self.window();
        if before.is_none() {
            (self.interval, self.max_idle) = (Interval::default(), JUST_ENDED);
        }
        self.is_start = false;
        let window = match (others, before) {
            // Without the number of calls that succeeded meanwhile, half of the window.
            (0, Some(before)) if overlapped || is_first => before / 2,
            (others, before) => before.map_or(others, |before| before.min(others)),
        };
        self.window = Some(window.max(1));
        if window > 1 || overlapped {
            return true;
        }
        self.outlasts_call |= others == 0;
        if let Some(gap) = call.gap.filter(|_| is_first && (call.is_paced || others == 0)) {
            self.interval.refused(gap);
            if let Some(end) = self.last_end.filter(|_| others == 0) {
                let idle = call.began.saturating_duration_since(end).min(self.longest_lock);
                self.max_idle = self.max_idle.max(2 * idle);
            }
        }
        true
    }

    /// Ends the limit, and begins with `window` calls in flight.
    pub(super) fn start_slowly(&mut self, window: usize) {
        self.unlearn();
        (self.window, self.is_start) = (Some(window), true);
    }

    /// Tries shorter intervals, as another limit may explain what was learned.
    pub(super) fn doubt(&mut self) {
        match self.interval() {
            Some(_) => self.interval.doubt(),
            None => self.unlearn(),
        }
    }

    pub(super) fn unlearn(&mut self) {
        (self.window, self.is_start, self.outlasts_call) = (None, false, false);
        (self.interval, self.max_idle) = (Interval::default(), JUST_ENDED);
        self.suspects = Suspects::new(!self.of_driver);
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
        self.sent().any(|(other, _)| *other != id) || ended.is_some_and(|end| end + lock >= call.began)
    }

    /// The shortest time between two calls that was accepted.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.interval.high
    }

    /// The time between a call and the one before.
    pub(super) fn gap(&self, id: CallId) -> Option<Duration> {
        self.calls.get(&id)?.gap
    }

    /// Whether the limit explains its refusal: what was accepted before is not refused.
    pub(super) fn explains(&self, id: CallId) -> bool {
        let Some(call) = self.calls.get(&id) else {
            return false;
        };
        match self.window() {
            // It began before the window changed.
            Some(_) if self.changed >= Some(call.began) => true,
            Some(window) if window > 1 => self.calls.len() >= window,
            Some(_) if self.calls.len() > 1 => true,
            None | Some(_) => call.gap.is_none_or(|gap| self.interval.explains(gap)),
        }
    }

    /// Whether a call succeeded while this one was in flight.
    pub(super) fn succeeded_during(&self, id: CallId) -> bool {
        let call = self.calls.get(&id);
        call.is_some_and(|call| self.last_end >= Some(call.began))
    }
}
