//! Whole numbers as Go's `flag` package reads them, refused in words that say which would do.

use std::num::NonZeroUsize;

/// How many of something may run at once.
pub(super) fn at_least_one(value: &str) -> Result<NonZeroUsize, String> {
    whole(value)
        .and_then(NonZeroUsize::new)
        .ok_or_else(|| format!("{value:?} will not do: give a whole number of 1 or more"))
}

/// How many of something an answer may hold, as the field of the protocol takes it.
pub(super) fn entries(value: &str) -> Result<i32, String> {
    whole(value).filter(|entries| *entries >= 0).ok_or_else(|| {
        format!(
            "{value:?} will not do: give a whole number from 0 (no bound) to {}",
            i32::MAX
        )
    })
}

/// How many of something there may be, none included.
pub(super) fn count(value: &str) -> Result<u32, String> {
    whole(value).ok_or_else(|| {
        format!(
            "{value:?} will not do: give a whole number from 0 to {}",
            u32::MAX
        )
    })
}

/// A length, where everything below one means that there is no bound.
pub(super) fn length(value: &str) -> Result<i64, String> {
    whole(value).ok_or_else(|| format!("{value:?} will not do: give a whole number, 0 or less for no bound"))
}

/// A number as `strconv.ParseInt` reads one whose base is not given: as an integer literal of Go. `0x10` is 16, `1_0` is
/// ten, and so is `012`.
fn whole<T: TryFrom<i128>>(value: &str) -> Option<T> {
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
    // An underscore stands between digits, or between them and what tells their base.
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

/// klog's verbosity, of which levels beyond ours have no more to say.
pub(super) fn verbosity(value: &str) -> Result<u8, String> {
    let level: i32 = value
        .parse()
        .map_err(|_| format!("{value:?} is no log level: give a whole number, such as 0 or 5"))?;
    Ok(u8::try_from(level.clamp(0, i32::from(u8::MAX))).unwrap_or(u8::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_as_go_takes_them_and_refused_in_words() {
        assert_eq!(at_least_one("7").map(NonZeroUsize::get), Ok(7));
        for value in ["0", "-1", "abc", "", "1.5"] {
            assert!(at_least_one(value).unwrap_err().contains("1 or more"), "{value}");
        }
        assert_eq!(entries("2147483647"), Ok(i32::MAX));
        for value in ["-1", "2147483648", "x"] {
            assert!(entries(value).unwrap_err().contains("from 0"), "{value}");
        }
        assert_eq!(length("-5"), Ok(-5));
        assert!(length("x").unwrap_err().contains("whole number"));
        assert!(count("-1").unwrap_err().contains("from 0"));
        assert_eq!(
            ["0", "10", "1000", "-3"].map(|value| verbosity(value).unwrap()),
            [0, 10, 255, 0]
        );
        assert!(verbosity("high").unwrap_err().contains("log level"));
    }

    #[test]
    fn numbers_are_literals_of_go() {
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
            assert_eq!(whole::<i64>(value), want, "{value:?}");
        }
    }
}
