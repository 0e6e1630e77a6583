//! An interval between two calls, found by bisection between the longest refused and the shortest accepted one. The former
//! shrinks with each success, so that a shorter interval is tried again after some.

use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(super) struct Interval {
    /// The longest refused one.
    low: Duration,
    /// The shortest accepted one.
    pub(super) high: Option<Duration>,
    /// The one in use.
    pub(super) current: Duration,
    /// Accepted ones in a row, and refused ones.
    pub(super) accepted: u32,
    refused: u32,
    /// Total number of refused ones.
    total_refused: u32,
}

/// The bisection ends when the interval is known with this precision.
const PRECISION: f64 = 1.06;
/// The part by which the longest refused interval shrinks with each success, and the number of consecutive successes that doubles it:
/// for up to one refusal, which may have had another cause, for two, and for more.
const SHRINKS: [(f64, u32); 3] = [(0.02, 2), (0.005, 4), (0.0003, 16)];
/// How much longer an interval becomes if it is refused although it was accepted before.
const STEP: f64 = 1.15;
/// After this many refusals in a row, what was accepted before is no bound any more.
const CHANGED: u32 = 4;
/// The shortest interval after a refusal.
const INTERVAL_START: Duration = Duration::from_millis(50);

// === impl Interval ===

impl Default for Interval {
    fn default() -> Self {
        Self {
            low: Duration::ZERO,
            high: None,
            current: INTERVAL_START,
            accepted: 0,
            refused: 0,
            total_refused: 0,
        }
    }
}

impl Interval {
    fn bisect(&mut self) {
        self.current = match self.high {
            None => (2 * self.low).max(INTERVAL_START),
            Some(high) if self.low.mul_f64(PRECISION) >= high => high,
            Some(high) => (self.low + high) / 2,
        };
    }

    /// Whether a refusal after `gap` fits to what is known. One of a known interval may come from jitter.
    pub(super) fn explains(&self, gap: Duration) -> bool {
        self.high.is_none_or(|high| gap < high) || !self.low.is_zero() && self.refused < 2
    }

    pub(super) fn accepted(&mut self, gap: Duration) {
        self.refused = 0;
        // A longer gap had another reason.
        if self.high.is_some() && gap > self.current.mul_f64(1.5) {
            return;
        }
        self.high = Some(self.high.map_or(gap, |high| high.min(gap)));
        self.accepted += 1;
        let (share, doubles) = SHRINKS[self.total_refused.saturating_sub(1).min(2) as usize];
        let share = share * f64::from(1u32 << (self.accepted / doubles).min(4));
        self.low = match gap < self.low {
            true => gap / 2,
            false => self.low.mul_f64(1.0 - share),
        };
        self.bisect();
    }

    /// This one is accepted, if only for another reason.
    pub(super) fn bound(&mut self, gap: Duration) {
        if self.high.is_none() && !self.low.is_zero() && self.low < gap {
            self.high = Some(gap);
            self.bisect();
        }
    }

    pub(super) fn refused(&mut self, gap: Duration) {
        self.refused += 1;
        self.total_refused += 1;
        self.accepted = 0;
        self.low = self.low.max(gap);
        if self.high.is_some_and(|high| high <= self.low) {
            // Tokens that are left in a bucket let too short intervals be accepted, so that a bisection would err again.
            self.high = (self.refused < CHANGED).then(|| self.low.mul_f64(STEP));
            self.low = self.high.map_or(self.low, |high| high.div_f64(PRECISION.sqrt()));
        }
        self.bisect();
    }
}
