//! Durations as Go writes them: `300ms`, `1.5h`, `1m30s`.

use std::time::Duration;

/// Units and their nanoseconds, longer names before their prefixes.
const UNITS: &[(&str, f64)] = &[
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("μs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 6e10),
    ("h", 3.6e12),
];

pub(crate) fn not_negative(value: &str) -> Result<Duration, String> {
    if let Some(positive) = value.strip_prefix('-')
        && parse(positive).is_some()
    {
        return Err(format!("{value:?} is less than nothing: leave out the minus"));
    }
    parse(value).ok_or_else(|| format!("{value:?} is not a duration such as 300ms, 15s or 1m30s"))
}

pub(super) fn positive(value: &str) -> Result<Duration, String> {
    let duration = not_negative(value)?;
    if duration.is_zero() {
        Err("must be more than zero, such as 15s".to_owned())
    } else {
        Ok(duration)
    }
}

fn parse(value: &str) -> Option<Duration> {
    let mut rest = value.strip_prefix('+').unwrap_or(value);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanoseconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let number: f64 = number.parse().ok()?;
        let (unit, factor) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        nanoseconds += number * factor;
        rest = &after[unit.len()..];
    }
    // Go's limit, 292 years. Far below what would overflow the clock.
    (nanoseconds <= i64::MAX as f64).then(|| Duration::from_secs_f64(nanoseconds / 1e9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_durations_like_go() {
        for (value, milliseconds) in [
            ("0", 0),
            ("0s", 0),
            ("300ms", 300),
            ("15s", 15_000),
            ("+1s", 1_000),
            ("1.5h", 5_400_000),
            ("1m30s", 90_000),
            ("1h2m3s4ms", 3_723_004),
            ("2000000ns", 2),
            ("2000us", 2),
            ("2000µs", 2),
            (".5s", 500),
            ("2562047h", 2_562_047 * 3_600_000),
        ] {
            assert_eq!(
                not_negative(value),
                Ok(Duration::from_millis(milliseconds)),
                "{value}"
            );
        }
        for value in [
            "3000000h",
            "1e20s",
            "99999999999999999999h",
            "",
            "15",
            "s",
            "-1s",
            "1x",
            "1 s",
            "1s2",
            "fast",
            "1.2.3s",
            "1e3s",
        ] {
            assert!(not_negative(value).is_err(), "{value}");
        }
        assert!(positive("0s").is_err());
    }
}
