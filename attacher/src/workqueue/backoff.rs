//! How long a failed operation waits.

use std::fmt;
use std::time::Duration;

use super::jittered;

/// How a failure is waited out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The answer is known and will not change soon: a final gRPC code, an API error.
    Final,
    /// It cannot be done as things stand, and nobody was asked. Once something changes that it depends on, it is
    /// tried again at once.
    Refused,
    /// The call may still be under way at the driver, or the driver asks for another try
    /// (CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, RESOURCE_EXHAUSTED, ABORTED): asking again is how
    /// its result is learnt.
    Uncertain,
    /// The driver went away during the call. Ends when it comes back, but not time after time: it may
    /// be this very call that brings it down.
    Interrupted,
    /// The driver was not there to be asked. Ends at once when it comes back.
    Disconnected,
}

/// Exponential backoff between `--retry-interval-start` and `--retry-interval-max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first delay.
    pub start: Duration,
    /// The longest delay.
    pub max: Duration,
}

/// An uncertain result is asked for again this many times sooner than a final one at the most.
const UNCERTAIN_SHARE: u32 = 10;

// === impl Class ===

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Final => "final",
            Self::Refused => "refused",
            Self::Uncertain => "uncertain",
            Self::Interrupted => "interrupted",
            Self::Disconnected => "disconnected",
        })
    }
}

// === impl Backoff ===

impl Backoff {
    /// The delay after the `times`-th failure in a row (1 is the first): `start · 2^(times-1)`, at
    /// most `max`; for the
    /// other classes at most a tenth of `max`, but never less than `start`.
    /// Up to a fifth of it is taken off by `jitter`, so the bound is never exceeded.
    pub fn delay(&self, class: Class, times: u32, jitter: f64) -> Duration {
        let cap = match class {
            Class::Final | Class::Refused => self.max,
            Class::Uncertain | Class::Interrupted | Class::Disconnected => {
                (self.max / UNCERTAIN_SHARE).max(self.start)
            }
        };
        let doubled = 1u32
            .checked_shl(times.saturating_sub(1))
            .and_then(|factor| self.start.checked_mul(factor));
        jittered(doubled.map_or(cap, |delay| delay.min(cap)), jitter)
    }
}
