//! Durations of flags and files: `250ms`, `1.5s`, `1m30s`, `0`.

use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;

/// The longest duration, 100 years: sums with it and the time of day stay in range.
const MAX: Duration = Duration::from_secs(876_000 * 3600);

/// A malformed or too long duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid duration \"{text}\": write a number with a unit, such as 250ms, 2s or 1m30s, at most 876000h"
)]
pub(crate) struct InvalidDuration {
    text: String,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Time(Duration);

impl TryFrom<String> for Time {
    type Error = InvalidDuration;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        parse(&text).map(Self)
    }
}

impl From<Time> for Duration {
    fn from(Time(duration): Time) -> Self {
        duration
    }
}

/// Parses a duration. A bare `0` needs no unit, as in Go's flags.
///
/// # Errors
/// The text is malformed, negative, or longer than 100 years.
pub(crate) fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let parsed: Option<SignedDuration> = text.parse().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
        .filter(|duration| *duration <= MAX)
        .ok_or_else(|| InvalidDuration {
            text: text.to_owned(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_flags_take() {
        // (text, milliseconds or none)
        let table = [
            ("0", Some(0)),
            ("0s", Some(0)),
            ("250ms", Some(250)),
            ("2s", Some(2_000)),
            ("1.5s", Some(1_500)),
            ("1m30s", Some(90_000)),
            ("1h", Some(3_600_000)),
            ("876000h", Some(3_153_600_000_000)),
            ("876000h1ms", None),
            ("9223372036854775807s", None),
            ("9223372036854775807.999999999s", None),
            ("9223372036854775807s1s", None),
            ("9223372036854775808s", None),
            ("18446744073709551616s", None),
            ("153722867280912930m60s", None),
            ("2562047788015215h60m", None),
            ("-9223372036854775808s", None),
            ("-1s", None),
            ("5", None),
            ("", None),
            ("soon", None),
        ];
        for (text, expected) in table {
            let millis = parse(text).ok().map(|duration| duration.as_millis());
            assert_eq!(millis, expected, "{text:?}");
        }
    }
}
