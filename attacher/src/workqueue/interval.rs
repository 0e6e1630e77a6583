//! An interval between the begins of two calls, found by bisection between the longest refused and the shortest accepted one,
//! and then tracked: a little shorter with each success, longer with each refusal.

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
    /// Whether the bisection ended.
    pub(super) tracks: bool,
    /// Accepted ones in a row, and refused ones.
    accepted: u32,
    refused: u32,
}

/// The bisection ends when the interval is known with this precision.
const PRECISION: f64 = 1.06;
/// Shorter intervals are none.
const NO_INTERVAL: Duration = Duration::from_millis(2);
/// After more refusals in a row the interval is searched again.
const TRACKED: u32 = 4;
/// The shortest interval after a refusal.
const INTERVAL_START: Duration = Duration::from_millis(50);

// === impl Interval ===

impl Default for Interval {
    fn default() -> Self {
        Self {
            low: Duration::ZERO,
            high: None,
            current: INTERVAL_START,
            tracks: false,
            accepted: 0,
            refused: 0,
        }
    }
}

impl Interval {
    /// Whether calls need no interval.
    pub(super) fn is_none(&self) -> bool {
        self.current < NO_INTERVAL
    }

    /// This one is accepted for another reason.
    pub(super) fn bound(&mut self, high: Duration) {
        if self.high.is_none() && !self.low.is_zero() && self.low < high {
            self.high = Some(high);
            self.bisect();
        }
    }

    fn bisect(&mut self) {
        self.current = match self.high {
            None => (2 * self.low).max(INTERVAL_START),
            Some(high) => {
                self.tracks = self.low.mul_f64(PRECISION) >= high;
                if self.tracks { high } else { (self.low + high) / 2 }
            }
        };
    }

    /// Whether a refusal after `gap` fits to what is known.
    pub(super) fn explains(&self, gap: Duration) -> bool {
        match self.tracks {
            true => self.refused < 2,
            false => self.high.is_none_or(|high| gap < high),
        }
    }

    pub(super) fn accepted(&mut self, gap: Duration) {
        self.refused = 0;
        if self.tracks {
            // A longer gap had another reason.
            if gap <= self.current.mul_f64(1.5) {
                self.accepted += 1;
                let share = 0.001 * f64::from(1u32 << (self.accepted / 16).min(8));
                self.current = self.current.mul_f64(1.0 - share.min(0.5));
            }
            return;
        }
        self.high = Some(self.high.map_or(gap, |high| high.min(gap)));
        if gap < self.low {
            self.low = gap / 2;
        }
        self.bisect();
    }

    pub(super) fn refused(&mut self, gap: Duration) {
        self.refused += 1;
        self.accepted = 0;
        if self.tracks && self.refused <= TRACKED {
            self.current = self.current.mul_f64(1.05);
            return;
        }
        self.low = if self.tracks { gap } else { self.low.max(gap) };
        self.tracks = false;
        self.high = self.high.filter(|high| *high > self.low);
        self.bisect();
    }
}
