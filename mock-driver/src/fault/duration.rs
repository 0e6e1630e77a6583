//! Durations as people write them in flags and files: `250ms`, `1.5s`, `1m30s`, `0`.

use std::time::Duration;

use jiff::SignedDuration;

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{text}\" is no duration: write it like 250ms, 2s or 1m30s")]
pub struct InvalidDuration {
    text: String,
}

/// Reads a duration. A bare `0` needs no unit, as in Go's flags.
///
/// # Errors
/// If it is none, or negative.
pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let parsed: Option<SignedDuration> = text.parse().ok();
    parsed
        .and_then(|duration| Duration::try_from(duration).ok())
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
