//! Formats of times and ages.

use std::time::Duration;

pub(crate) use csi_attacher::report::time as rfc3339;
use jiff::Timestamp;

/// The age in its two greatest units.
pub(crate) fn ago(age: Duration) -> String {
    let seconds = age.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        0 => "just now".to_owned(),
        1..60 => format!("{seconds} s ago"),
        60..3600 => format!("{minutes} min {} s ago", seconds % 60),
        3600..86_400 => format!("{hours} h {} min ago", minutes % 60),
        86_400.. => format!("{days} d {} h ago", hours % 24),
    }
}

/// The time between the two; zero if another clock put `earlier` after `now`.
pub(crate) fn age(earlier: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(earlier)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in [
            (0, "just now"),
            (59, "59 s ago"),
            (61, "1 min 1 s ago"),
            (7_322, "2 h 2 min ago"),
            (200_000, "2 d 7 h ago"),
        ] {
            assert_eq!(ago(Duration::from_secs(seconds)), text);
        }
    }
}
