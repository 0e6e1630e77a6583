//! Reproducible random numbers: each draw depends on the seed, its subject and its number only.
//!
//! It does not depend on other draws. So the third attach of a volume has the same faults in every run with the same seed,
//! however calls for other volumes interleave.

use std::time::Duration;

use siphasher::sip::SipHasher24;

/// Number of distinct draws: the mantissa of a double.
const STEPS: u64 = 1 << 53;

/// The source of all draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u64);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DelayDistribution {
    Fixed(Duration),
    Uniform {
        from: Duration,
        to: Duration,
    },
    /// Exponential, as waiting times of a busy array are.
    Exponential {
        mean: Duration,
        max: Option<Duration>,
    },
}

// === impl Seed ===

impl Seed {
    /// A number in [0, 1) for the `count`th draw of `what` for the subject `whom`.
    #[allow(
        clippy::cast_precision_loss,
        reason = "both numbers are below 2^53 or are that"
    )]
    pub(crate) fn unit(self, what: &str, whom: u64, count: u64) -> f64 {
        let mut text = Vec::with_capacity(what.len() + 16);
        text.extend_from_slice(&whom.to_le_bytes());
        text.extend_from_slice(&count.to_le_bytes());
        text.extend_from_slice(what.as_bytes());
        (self.keyed_hash(&text) % STEPS) as f64 / STEPS as f64
    }

    pub(crate) fn keyed_hash(self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_keys(self.0, 0).hash(bytes)
    }
}

// === impl DelayDistribution ===

impl DelayDistribution {
    pub(crate) fn at(self, unit: f64) -> Duration {
        match self {
            Self::Fixed(time) => time,
            Self::Uniform { from, to } => from + to.saturating_sub(from).mul_f64(unit),
            Self::Exponential { mean, max } => {
                let time = mean.mul_f64(-(1.0 - unit).ln());
                max.map_or(time, |max| time.min(max))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_itself_and_another_differs() {
        let draw = |seed: u64| -> Vec<f64> { (0..50).map(|n| Seed(seed).unit("rule", 7, n)).collect() };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(1).iter().all(|unit| (0.0..1.0).contains(unit)));
        assert_ne!(Seed(1).unit("rule", 7, 0), Seed(1).unit("rule", 8, 0));
        assert_ne!(Seed(1).unit("rule", 7, 0), Seed(1).unit("other", 7, 0));
    }

    #[test]
    fn spreads_keep_their_bounds_and_their_average() {
        const DRAWS: u32 = 20_000;
        let seconds = Duration::from_secs;
        // (spread, shortest, longest, average in ms)
        let table = [
            (DelayDistribution::Fixed(seconds(2)), seconds(2), seconds(2), 2000),
            (
                DelayDistribution::Uniform {
                    from: seconds(1),
                    to: seconds(3),
                },
                seconds(1),
                seconds(3),
                2000,
            ),
            (
                DelayDistribution::Exponential {
                    mean: seconds(1),
                    max: None,
                },
                Duration::ZERO,
                seconds(40),
                1000,
            ),
            (
                DelayDistribution::Exponential {
                    mean: seconds(1),
                    max: Some(seconds(1)),
                },
                Duration::ZERO,
                seconds(1),
                632,
            ),
        ];
        for (distribution, shortest, longest, average) in table {
            let times: Vec<Duration> = (0..u64::from(DRAWS))
                .map(|n| distribution.at(Seed(42).unit("delay", 0, n)))
                .collect();
            assert!(
                times.iter().all(|time| *time >= shortest && *time <= longest),
                "{distribution:?}"
            );
            let mean = (times.iter().sum::<Duration>() / DRAWS).as_millis();
            assert!(
                mean.abs_diff(average) <= average / 20,
                "{distribution:?}: {mean} ms"
            );
        }
    }
}
