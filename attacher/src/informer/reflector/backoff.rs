//! Backoff of a reflector, as client-go's.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct WatchBackoff {
    failures: u32,
    /// The stage of the last failure, and the time of the retry.
    last: Option<(Stage, Instant)>,
    pause: Duration,
    random: fastrand::Rng,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    List,
    Watch,
}

/// client-go's values. Jitter adds up to 100 %, as in client-go.
const FIRST_PAUSE: Duration = Duration::from_millis(800);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The backoff resets this long after a retry without another failure, because a watch without changes sends no event. client-go's
/// value.
const FORGOTTEN: Duration = Duration::from_secs(2 * 60);

// === impl WatchBackoff ===

impl WatchBackoff {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            failures: 0,
            last: None,
            pause: FIRST_PAUSE,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Records a failure. Returns the number of consecutive failures and the pause before the retry, at least `asked_for`: the
    /// response's Retry-After.
    pub(super) fn failed(&mut self, stage: Stage, asked_for: Duration, now: Instant) -> (u32, Duration) {
        if let Some((_, resumed)) = self.last
            && now.saturating_duration_since(resumed) >= FORGOTTEN
        {
            self.forget();
        }
        let chance = self.pause.mul_f64(self.random.f64());
        let pause = (self.pause + chance).max(asked_for);
        self.failures = self.failures.saturating_add(1);
        self.last = Some((stage, now + pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        (self.failures, pause)
    }

    /// Records a complete list or a watch event. Returns the number of failures before it, if it resets the backoff.
    ///
    /// A list does not reset the backoff of a watch: otherwise a server that ends each watch would get a list every second.
    pub(super) fn succeeded(&mut self, stage: Stage) -> Option<u32> {
        let (failed, _) = self.last?;
        if stage == Stage::List && failed == Stage::Watch {
            return None;
        }
        let failures = self.failures;
        self.forget();
        Some(failures)
    }

    fn forget(&mut self) {
        self.failures = 0;
        self.last = None;
        self.pause = FIRST_PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A backoff after this many failures in a row, and the time of the next attempt.
    fn mk_backoff(stage: Stage, failures: u32) -> (WatchBackoff, Instant) {
        let mut backoff = WatchBackoff::new(1);
        let mut now = tokio::time::Instant::now().into_std();
        for _ in 0..failures {
            now += backoff.failed(stage, Duration::ZERO, now).1;
        }
        (backoff, now)
    }

    #[test]
    fn pauses_double_up_to_half_a_minute_plus_jitter() {
        let (mut backoff, mut now) = mk_backoff(Stage::List, 0);
        let mut least = FIRST_PAUSE;
        for failure in 1..=20 {
            let (failures, pause) = backoff.failed(Stage::List, Duration::ZERO, now);
            assert_eq!(failures, failure);
            assert!(least <= pause && pause <= 2 * least, "{failure}: {pause:?}");
            least = (2 * least).min(LONGEST_PAUSE);
            now += pause;
        }
        assert_eq!(backoff.failed(Stage::List, 100 * SECOND, now).1, 100 * SECOND);
    }

    #[test]
    fn only_success_of_the_failed_or_a_later_stage_resets_the_backoff() {
        for (failed, succeeded, ended) in [
            (Stage::List, Stage::List, Some(5)),
            (Stage::List, Stage::Watch, Some(5)),
            (Stage::Watch, Stage::Watch, Some(5)),
            (Stage::Watch, Stage::List, None),
        ] {
            let (mut backoff, now) = mk_backoff(failed, 5);
            assert_eq!(backoff.succeeded(succeeded), ended, "{failed:?} {succeeded:?}");
            let next = backoff.failed(failed, Duration::ZERO, now).0;
            assert_eq!(next, if ended.is_some() { 1 } else { 6 });
        }
        let (mut healthy, _) = mk_backoff(Stage::List, 0);
        assert_eq!(healthy.succeeded(Stage::Watch), None, "nothing had failed");
    }

    #[test]
    fn failure_long_after_the_last_one_restarts_the_count() {
        for (after, failures) in [(FORGOTTEN - SECOND, 6), (FORGOTTEN, 1)] {
            let (mut backoff, now) = mk_backoff(Stage::Watch, 5);
            let (seen, _) = backoff.failed(Stage::Watch, Duration::ZERO, now + after);
            assert_eq!(seen, failures);
        }
    }
}
