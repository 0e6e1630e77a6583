//! Backoff of failed operations.

use std::fmt;
use std::time::Duration;

/// The class of a failure, which selects its backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The result is known and will not change soon: a final gRPC code, an API error.
    Final,
    /// The plan refused the object before any request. A change of its inputs ends the backoff.
    Refused,
    /// Nothing proves that the volume is unpublished. A change of the CSINode, a list or a reconnect ends the backoff.
    Unproven,
    /// The driver may still execute the call, or requests a retry (CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE,
    /// RESOURCE_EXHAUSTED, ABORTED): a retry shows its result.
    Uncertain,
    /// The connection was lost during the call. A reconnect ends the backoff, but not repeatedly: the call may crash the driver.
    Interrupted,
    /// The driver was not connected. A reconnect ends the backoff.
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

/// The maximal backoff of an uncertain result is this many times shorter than that of a final one.
const UNCERTAIN_SHARE: u32 = 10;

/// The maximal jitter as a part of the delay.
const JITTER: f64 = 0.2;

// === impl Class ===

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Final => "final",
            Self::Refused => "refused",
            Self::Unproven => "unproven",
            Self::Uncertain => "uncertain",
            Self::Interrupted => "interrupted",
            Self::Disconnected => "disconnected",
        })
    }
}

// === impl Backoff ===

impl Backoff {
    /// The delay after the `times`-th failure in a row (1 is the first): `start · 2^(times-1)`, at most `max`, or a tenth of
    /// it if the result is uncertain, but never less than `start`. Up to a fifth is taken off by `jitter`.
    pub fn delay(&self, class: Class, times: u32, jitter: f64) -> Duration {
        let cap = match class {
            Class::Final | Class::Refused | Class::Unproven => self.max,
            Class::Uncertain | Class::Interrupted | Class::Disconnected => {
                (self.max / UNCERTAIN_SHARE).max(self.start)
            }
        };
        let doubled = 1u32
            .checked_shl(times.saturating_sub(1))
            .and_then(|factor| self.start.checked_mul(factor));
        let delay = doubled.map_or(cap, |delay| delay.min(cap));
        delay.mul_f64(1.0 - JITTER * jitter.clamp(0.0, 1.0))
    }
}
