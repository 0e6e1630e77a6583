//! Whole numbers, refused in words that say which would do.

use std::num::NonZeroUsize;

/// How many of something may run at once.
pub(super) fn at_least_one(value: &str) -> Result<NonZeroUsize, String> {
    value
        .parse()
        .map_err(|_| format!("{value:?} will not do: give a whole number of 1 or more"))
}

/// How many of something an answer may hold, as the field of the protocol takes it.
pub(super) fn entries(value: &str) -> Result<i32, String> {
    value.parse().ok().filter(|entries| *entries >= 0).ok_or_else(|| {
        format!(
            "{value:?} will not do: give a whole number from 0 (no bound) to {}",
            i32::MAX
        )
    })
}

/// A length, where everything below one means that there is no bound.
pub(super) fn length(value: &str) -> Result<i64, String> {
    value
        .parse()
        .map_err(|_| format!("{value:?} will not do: give a whole number, 0 or less for no bound"))
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
        assert_eq!(
            ["0", "10", "1000", "-3"].map(|value| verbosity(value).unwrap()),
            [0, 10, 255, 0]
        );
        assert!(verbosity("high").unwrap_err().contains("log level"));
    }
}
