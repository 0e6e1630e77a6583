//! Medians and percentiles.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Summary of several rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median; for an even number of rounds the mean of the two middle values.
    pub median: f64,
    /// The value of each round, in order.
    pub rounds: Vec<f64>,
}

// === impl Summary ===

impl Summary {
    /// `None` without rounds.
    pub fn of(rounds: Vec<f64>) -> Option<Self> {
        let median = median(rounds.clone())?;
        Some(Self { median, rounds })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2]),
        n => Some(f64::midpoint(values[n / 2 - 1], values[n / 2])),
    }
}

/// The smallest sample that at least `percent` of all samples do not exceed, in milliseconds.
pub(super) fn percentile(samples: &mut [Duration], percent: usize) -> Option<f64> {
    samples.sort_unstable();
    let rank = (samples.len() * percent).div_ceil(100).max(1);
    samples.get(rank - 1).map(|sample| sample.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_has_the_middle() {
        assert_eq!(Summary::of(vec![]), None);
        for (rounds, median) in [
            (vec![5.0], 5.0),
            (vec![3.0, 1.0, 2.0], 2.0),
            (vec![4.0, 1.0, 2.0, 30.0], 3.0),
        ] {
            let summary = Summary::of(rounds.clone()).expect("there are rounds");
            assert_eq!(summary.median, median, "{rounds:?}");
            assert_eq!(summary.rounds, rounds, "the order of rounds stays");
        }
    }

    #[test]
    fn a_percentile_is_one_of_the_samples() {
        let mut samples: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        for (percent, expected) in [(0, 1.0), (1, 1.0), (50, 50.0), (99, 99.0), (100, 100.0)] {
            assert_eq!(percentile(&mut samples, percent), Some(expected), "{percent}");
        }
        let mut few = [Duration::from_millis(2), Duration::from_millis(1)];
        assert_eq!(percentile(&mut few, 50), Some(1.0));
        assert_eq!(percentile(&mut few, 51), Some(2.0));
        assert_eq!(percentile(&mut [], 50), None);
    }
}
