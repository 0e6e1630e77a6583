//! The deadline of a call, which gRPC sends as the time that is left.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;
use tonic::codegen::http::{HeaderMap, HeaderValue};

use crate::rpc::timeout;

/// gRPC allows eight digits.
const LARGEST: u128 = 99_999_999;

#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Instant);

// === impl Deadline ===

impl Deadline {
    /// The deadline of a call that arrives now, if it has one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        Some(Self(Instant::now().checked_add(timeout::of(headers)?)?))
    }

    /// Sets the time that is left.
    ///
    /// # Errors
    /// None is left.
    pub(super) fn set(self, headers: &mut HeaderMap) -> Result<(), Status> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Status::deadline_exceeded(
                "the deadline expired before the proxy called the driver",
            ));
        }
        let value = HeaderValue::from_str(&text(left)).expect("digits and a letter must be a header value");
        headers.insert(timeout::HEADER, value);
        Ok(())
    }
}

/// In the smallest unit that takes the time, rounded up, because 0 would mean an expired deadline.
fn text(left: Duration) -> String {
    let nanos = left.as_nanos();
    let units = [
        ("n", 1),
        ("u", 1_000),
        ("m", 1_000_000),
        ("S", 1_000_000_000),
        ("H", 3_600_000_000_000),
    ];
    let fitting = units.into_iter().map(|(unit, size)| (unit, nanos.div_ceil(size)));
    let (unit, number) = fitting
        .into_iter()
        .find(|(_, number)| *number <= LARGEST)
        .unwrap_or(("H", LARGEST));
    format!("{number}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_written_with_at_most_eight_digits() {
        // (header, the same time as the proxy writes it)
        for (header, written) in [
            ("5n", "5n"),
            ("99999999n", "99999999n"),
            ("100000u", "100000u"),
            ("10S", "10000000u"),
            ("250m", "250000u"),
            ("15M", "900000m"),
            ("99999999H", "99999999H"),
        ] {
            assert_eq!(text(timeout::parse(header).unwrap()), written, "{header}");
        }
        for header in ["", "S", "5", "5x", "-5S", "123456789S", "+5S"] {
            assert_eq!(timeout::parse(header), None, "{header}");
        }
    }
}
