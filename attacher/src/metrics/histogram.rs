//! Observations, counted by how large they are.

use std::time::Duration;

/// Counts of observations in buckets with fixed upper bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One a bound, and one for what is above the last.
    counts: Box<[u64]>,
    sum: f64,
}

// === impl Histogram ===

impl Histogram {
    /// An empty histogram with these upper bounds, in ascending order.
    pub fn new(bounds: &'static [f64]) -> Self {
        Self {
            bounds,
            counts: vec![0; bounds.len() + 1].into_boxed_slice(),
            sum: 0.0,
        }
    }

    /// Counts one observation. A bound belongs to its bucket.
    pub fn observe(&mut self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket] += 1;
        self.sum += value;
    }

    /// Counts one duration, in seconds.
    pub fn observe_duration(&mut self, duration: Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// How much was observed up to each bound. What is above the last bound is only in
    /// [`Histogram::count`].
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let counts = self.counts.iter().scan(0, |total, count| {
            *total += count;
            Some(*total)
        });
        self.bounds.iter().copied().zip(counts)
    }

    /// How much was observed in all.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The sum of all observations.
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_are_counted_up_to_each_bound() {
        let mut histogram = Histogram::new(&[0.5, 1.0, 2.0]);
        for value in [0.25, 0.5, 0.75, 2.0, 9.0] {
            histogram.observe(value);
        }
        histogram.observe_duration(Duration::from_millis(1500));
        assert_eq!(
            histogram.cumulative().collect::<Vec<_>>(),
            [(0.5, 2), (1.0, 3), (2.0, 5)]
        );
        assert_eq!(histogram.count(), 6);
        assert!((histogram.sum() - 14.0).abs() < 1e-9);
    }
}
