//! The time, which each operation gets as an argument.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A time in nanoseconds since 1970 in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(u64);

// === impl UnixTime ===

impl UnixTime {
    /// The time that is this number of nanoseconds after 1970.
    pub fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Whole seconds since 1970.
    pub(crate) fn seconds(self) -> u64 {
        self.0 / 1_000_000_000
    }

    /// The nanoseconds after the whole second.
    pub(crate) fn subsec_nanos(self) -> u32 {
        u32::try_from(self.0 % 1_000_000_000).expect("a remainder must be less than its divisor")
    }

    /// The time that is later by `time`.
    pub fn after(self, time: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}
