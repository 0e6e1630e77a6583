//! Integers in the syntax of Go's `flag` package.

use std::num::NonZeroUsize;

pub(super) fn at_least_one(value: &str) -> Result<NonZeroUsize, String> {
    parse(value)
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| format!("{value:?} must be an integer of at least 1"))
}

/// `max_entries` of ListVolumes.
pub(super) fn entries(value: &str) -> Result<i32, String> {
    parse(value).filter(|entries| *entries >= 0).ok_or_else(|| {
        let most = i32::MAX;
        format!("{value:?} must be an integer from 0 (no limit) to {most}")
    })
}

pub(super) fn count(value: &str) -> Result<u32, String> {
    parse(value).ok_or_else(|| format!("{value:?} must be an integer from 0 to {}", u32::MAX))
}

/// A length; 0 or less means no limit.
pub(super) fn length(value: &str) -> Result<i64, String> {
    parse(value).ok_or_else(|| format!("{value:?} must be an integer; 0 or less means no limit"))
}

/// Parses an integer literal of Go, like `strconv.ParseInt` with base 0: `0x10` is 16, `1_0` and `012` are ten.
fn parse<T: TryFrom<i128>>(value: &str) -> Option<T> {
    let (sign, digits) = match value.as_bytes().first()? {
        b'-' => (-1, &value[1..]),
        b'+' => (1, &value[1..]),
        _ => (1, value),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, rest) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &*lower),
    };
    // An underscore separates digits, or the base prefix and the first digit.
    let leads = radix == 10 && rest.starts_with('_');
    if leads || rest.ends_with('_') || rest.contains("__") {
        return None;
    }
    let digits = rest.replace('_', "");
    let number = i128::from_str_radix(&digits, radix)
        .ok()
        .filter(|_| !digits.starts_with(['-', '+']))?;
    T::try_from(sign * number).ok()
}

/// klog's verbosity, clamped to the levels that exist here.
pub(super) fn verbosity(value: &str) -> Result<u8, String> {
    let level: i32 = value
        .parse()
        .map_err(|_| format!("{value:?} must be a log level, such as 0 or 5"))?;
    Ok(u8::try_from(level.clamp(0, i32::from(u8::MAX))).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_integers_out_of_range_with_the_range() {
        assert_eq!(at_least_one("7").map(NonZeroUsize::get), Ok(7));
        for value in ["0", "-1", "abc", "", "1.5"] {
            assert!(at_least_one(value).unwrap_err().contains("at least 1"), "{value}");
        }
        assert_eq!(entries("2147483647"), Ok(i32::MAX));
        for value in ["-1", "2147483648", "x"] {
            assert!(entries(value).unwrap_err().contains("from 0"), "{value}");
        }
        assert_eq!(length("-5"), Ok(-5));
        assert!(length("x").unwrap_err().contains("must be an integer"));
        assert!(count("-1").unwrap_err().contains("from 0"));
        assert_eq!(
            ["0", "10", "1000", "-3"].map(|value| verbosity(value).unwrap()),
            [0, 10, 255, 0]
        );
        assert!(verbosity("high").unwrap_err().contains("log level"));
    }

    #[test]
    fn parses_integer_literals_of_go() {
        let table = [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("+7", Some(7)),
            ("0x10", Some(16)),
            ("-0X1f", Some(-31)),
            ("0b11", Some(3)),
            ("0o17", Some(15)),
            ("017", Some(15)),
            ("0_17", Some(15)),
            ("0x_1", Some(1)),
            ("1_000", Some(1000)),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("1__0", None),
            ("_1", None),
            ("1_", None),
            ("0x", None),
            ("08", None),
            ("0b2", None),
            ("+-1", None),
            ("--1", None),
            ("0x-1", None),
            ("-", None),
            ("", None),
            (" 1", None),
            ("ä", None),
        ];
        for (value, want) in table {
            assert_eq!(parse::<i64>(value), want, "{value:?}");
        }
    }
}
