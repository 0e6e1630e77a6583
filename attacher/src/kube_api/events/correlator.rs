//! Selects the notices that become Events; pure, `now` is an argument.
//!
//! A repeated notice updates its Event at most every [`REPEAT_INTERVAL`] and is dropped otherwise; all repeats together have half of
//! the rate of Events, so that an outage of thousands of objects leaves room for the first Event of another. [`OBJECT_RATE`] limits
//! the new Events of an object. As in client-go's EventCorrelator, the objects that were longest without a notice are forgotten when
//! there are more than [`OBJECTS`]: they lose their limit, and no object loses its Events.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

use super::{Notice, RATE};
use crate::kube_api::Rate;
use crate::kube_api::request_limiter::TokenBucket;

/// Below the shortest backoff, so that each failure of an object counts.
const REPEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Rate limit of the repeats of all objects.
const REPEAT_RATE: Rate = Rate {
    qps: RATE.qps / 2.0,
    burst: RATE.burst / 2,
};
/// Eight new Events at once, then one a minute.
const OBJECT_RATE: Rate = Rate {
    qps: 1.0 / 60.0,
    burst: 8,
};
/// Maximum objects, at 100 to 700 bytes each: client-go's.
const OBJECTS: usize = 4096;
/// Longer than the maximum backoff, so that a continuing failure stays one Event.
const IDLE: Duration = Duration::from_secs(900);

#[derive(Debug)]
pub(super) struct EventCorrelator {
    /// By the hash of the UID.
    objects: LruCache<u64, Object>,
    repeats: Option<TokenBucket>,
    hasher: RandomState,
}

#[derive(Debug)]
struct Object {
    /// When each Event was last written, within [`IDLE`], by the hash of reason and action.
    written: HashMap<u64, Instant>,
    budget: TokenBucket,
    last: Instant,
}

// === impl EventCorrelator ===

impl EventCorrelator {
    pub(super) fn admits(&mut self, notice: &Notice, now: Instant) -> bool {
        let is_idle = |last: Instant| now.saturating_duration_since(last) >= IDLE;
        while self
            .objects
            .peek_lru()
            .is_some_and(|(_, object)| is_idle(object.last))
        {
            self.objects.pop_lru();
        }
        let uid = self.hasher.hash_one(&notice.regarding.uid);
        let key = self.hasher.hash_one((notice.reason, &notice.action));
        let object = self.objects.get_or_insert_mut(uid, || Object::new(now));
        object.last = now;
        let admitted = match object.written.get(&key) {
            Some(written) if now.saturating_duration_since(*written) < REPEAT_INTERVAL => false,
            Some(_) => {
                let repeats = self
                    .repeats
                    .get_or_insert_with(|| TokenBucket::new(REPEAT_RATE, now));
                repeats.try_take(now)
            }
            None => object.budget.try_take(now),
        };
        if admitted {
            object.written.retain(|_, written| !is_idle(*written));
            object.written.insert(key, now);
        }
        admitted
    }
}

impl Default for EventCorrelator {
    fn default() -> Self {
        const CAPACITY: NonZeroUsize = NonZeroUsize::new(OBJECTS).expect("the maximum must not be zero");
        Self {
            objects: LruCache::new(CAPACITY),
            repeats: None,
            hasher: RandomState::new(),
        }
    }
}

// === impl Object ===

impl Object {
    fn new(now: Instant) -> Self {
        Self {
            written: HashMap::new(),
            budget: TokenBucket::new(OBJECT_RATE, now),
            last: now,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::super::Reason;
    use super::*;
    use crate::csi::Code;
    use crate::plan::tests::mk_attachment;

    const SECOND: Duration = Duration::from_secs(1);

    fn mk_notice(name: &str, reason: Reason, message: &str) -> Notice {
        Notice::new(ObjectReference::from(&mk_attachment(name)), reason, None, message)
    }

    fn mk_failure(code: &str) -> Notice {
        let code = Code::named(code).expect("a code of gRPC");
        let regarding = ObjectReference::from(&mk_attachment("va"));
        Notice::new(regarding, Reason::AttachFailed, Some(code), "no")
    }

    #[test]
    fn repeats_are_written_twice_a_second_at_most() {
        let (mut correlator, begin) = (EventCorrelator::default(), Instant::now());
        let written: Vec<u32> = (0..=5)
            .map(|step| step * 250)
            .filter(|millis| correlator.admits(&mk_failure("Internal"), begin + *millis * SECOND / 1000))
            .collect();
        assert_eq!(written, [0, 500, 1000]);
    }

    #[test]
    fn changed_cause_is_written_at_once() {
        let (mut correlator, now) = (EventCorrelator::default(), Instant::now());
        for code in ["Internal", "NotFound", "Unavailable"] {
            assert!(correlator.admits(&mk_failure(code), now), "{code}");
            assert!(!correlator.admits(&mk_failure(code), now), "{code}");
        }
        assert!(correlator.admits(&mk_notice("va", Reason::AttachRecovered, "attached"), now));
    }

    #[test]
    fn events_that_are_not_repeated_are_forgotten() {
        let (mut correlator, begin) = (EventCorrelator::default(), Instant::now());
        for minute in 0..100 {
            let notice = mk_notice("va", Reason::AttachFailed, &format!("cause {minute}"));
            assert!(correlator.admits(&notice, begin + minute * 60 * SECOND));
        }
        let (_, object) = correlator.objects.iter().next().expect("it had Events");
        assert!(object.written.len() <= 15, "{}", object.written.len());
    }

    #[test]
    fn object_may_cause_eight_new_events_and_then_one_a_minute() {
        let (mut correlator, now) = (EventCorrelator::default(), Instant::now());
        let codes = [
            "Canceled",
            "Unknown",
            "InvalidArgument",
            "DeadlineExceeded",
            "NotFound",
            "AlreadyExists",
            "PermissionDenied",
            "ResourceExhausted",
            "FailedPrecondition",
            "Aborted",
        ];
        let admitted = codes
            .iter()
            .filter(|code| correlator.admits(&mk_failure(code), now));
        assert_eq!(admitted.count(), 8);
        let later = now + 61 * SECOND;
        assert!(correlator.admits(&mk_failure("Aborted"), later));
        assert!(!correlator.admits(&mk_failure("FailedPrecondition"), later));
        let other = mk_notice("other", Reason::AttachFailed, "no");
        assert!(
            correlator.admits(&other, now),
            "other objects have their own budget"
        );
    }

    #[test]
    fn failing_objects_do_not_silence_others_and_are_bounded() {
        let (mut correlator, now) = (EventCorrelator::default(), Instant::now());
        let notice = |n: usize| mk_notice(&n.to_string(), Reason::AttachFailed, "no");
        let admitted = (0..2 * OBJECTS).filter(|n| correlator.admits(&notice(*n), now));
        assert_eq!(admitted.count(), 2 * OBJECTS);
        assert_eq!(correlator.objects.len(), OBJECTS);
        assert!(
            !correlator.admits(&notice(2 * OBJECTS - 1), now),
            "the newest are remembered"
        );
        assert!(correlator.admits(&notice(2 * OBJECTS), now + IDLE));
        assert_eq!(correlator.objects.len(), 1, "idle objects are forgotten");
    }

    /// An outage repeats the Events of thousands of objects.
    #[test]
    fn repeats_leave_half_of_the_rate_to_new_events() {
        let (mut correlator, begin) = (EventCorrelator::default(), Instant::now());
        let mut repeats = 0;
        for seconds in 0..=60 {
            let now = begin + seconds * SECOND;
            for n in 0..500 {
                let admitted = correlator.admits(&mk_notice(&n.to_string(), Reason::AttachFailed, "no"), now);
                repeats += usize::from(admitted && seconds > 0);
            }
        }
        assert!((300..=330).contains(&repeats), "{repeats} in a minute");
    }
}
