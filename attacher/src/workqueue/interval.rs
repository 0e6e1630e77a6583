//! An interval between two calls, found by bisection between the longest refused and the shortest accepted one. The former
//! shrinks with each success, the faster the more there were in a row, so that a shorter interval is tried again after some.

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
    /// Number and sum of the intervals accepted in a row, and number of those refused in a row.
    pub(super) accepted: u32,
    sum: Duration,
    refused: u32,
}

/// The bisection ends when the interval is known with this precision.
const PRECISION: f64 = 1.06;
/// The share by which the longest refused interval shrinks with each success: at first, and at most.
const SHRINK: f64 = 0.0003;
const MOST_SHRINK: f64 = 0.05;
/// The share doubles after as many successes as take 0.8 s, within these bounds.
const DOUBLES_AFTER: f64 = 0.8;
const DOUBLES: (f64, f64) = (4.0, 16.0);
/// An accepted interval that is refused becomes longer: by the first factor, or to the mean since the last refusal times the second
/// one.
const STEP: f64 = 1.15;
const ABOVE_MEAN: f64 = 1.02;
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
            sum: Duration::ZERO,
            refused: 0,
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
        self.sum += gap;
        let doubles = (DOUBLES_AFTER / self.current.as_secs_f64()).clamp(DOUBLES.0, DOUBLES.1);
        let share = SHRINK * (f64::from(self.accepted) / doubles).exp2();
        self.low = self.low.min(gap).mul_f64(1.0 - share.min(MOST_SHRINK));
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
        self.low = self.low.max(gap);
        if self.high.is_some_and(|high| high <= self.low) {
            // Tokens that were left in a bucket let too short intervals be accepted. Their mean is what the bucket takes.
            let mean = self.sum.checked_div(self.accepted).unwrap_or_default();
            let high = self.low.mul_f64(STEP).max(mean.mul_f64(ABOVE_MEAN));
            self.high = Some(high);
            self.low = high.div_f64(PRECISION.sqrt());
        }
        self.refused += 1;
        (self.accepted, self.sum) = (0, Duration::ZERO);
        self.bisect();
    }

    /// Forgets the refused intervals, which another limit may explain.
    pub(super) fn doubt(&mut self) {
        (self.low, self.accepted, self.sum) = (Duration::ZERO, 0, Duration::ZERO);
        self.bisect();
    }
}
