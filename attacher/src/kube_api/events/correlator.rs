//! Selects the notices that become Events; pure, `now` is an argument.
//!
//! A repeated notice updates its Event at most every [`REPEAT_INTERVAL`] and is dropped otherwise. [`OBJECT_RATE`] limits the new
//! Events of an object, [`OBJECTS`] the number of objects; idle objects are removed ([`IDLE`]).

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::{Notice, Reason};
use crate::kube_api::Rate;
use crate::kube_api::request_limiter::TokenBucket;

/// Below the shortest backoff, so that each failure of an object counts.
const REPEAT_INTERVAL: Duration = Duration::from_millis(500);
/// Eight new Events at once, then one a minute.
const OBJECT_RATE: Rate = Rate {
    qps: 1.0 / 60.0,
    burst: 8,
};
/// Maximum objects, at about a kilobyte each.
const OBJECTS: usize = 1024;
/// Longer than the maximum backoff, so that a continuing failure stays one Event.
const IDLE: Duration = Duration::from_secs(900);

#[derive(Debug, Default)]
pub(super) struct EventCorrelator {
    /// By UID.
    objects: HashMap<String, Object>,
}

#[derive(Debug)]
struct Object {
    /// When each Event was last written, within [`IDLE`].
    written: HashMap<(Reason, String), Instant>,
    budget: TokenBucket,
    last: Instant,
}

// === impl EventCorrelator ===

impl EventCorrelator {
    /// Whether to write this notice now.
    pub(super) fn admits(&mut self, notice: &Notice, now: Instant) -> bool {
        let uid = notice.regarding.uid.as_deref().unwrap_or_default();
        if !self.objects.contains_key(uid) && !self.make_room(now) {
            return false;
        }
        let object = self
            .objects
            .entry(uid.to_owned())
            .or_insert_with(|| Object::new(now));
        object.last = now;
        let key = (notice.reason, notice.action.clone());
        let admitted = match object.written.get(&key) {
            Some(written) => now.saturating_duration_since(*written) >= REPEAT_INTERVAL,
            None => object.budget.try_take(now),
        };
        if admitted {
            object
                .written
                .retain(|_, written| now.saturating_duration_since(*written) < IDLE);
            object.written.insert(key, now);
        }
        admitted
    }

    fn make_room(&mut self, now: Instant) -> bool {
        if self.objects.len() >= OBJECTS {
            self.objects
                .retain(|_, object| now.saturating_duration_since(object.last) < IDLE);
        }
        self.objects.len() < OBJECTS
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
        let object = correlator.objects.values().next().expect("it had Events");
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
    fn objects_are_bounded_and_forgotten_when_idle() {
        let (mut correlator, now) = (EventCorrelator::default(), Instant::now());
        let notice = |n: usize| mk_notice(&n.to_string(), Reason::AttachFailed, "no");
        let admitted = (0..2 * OBJECTS).filter(|n| correlator.admits(&notice(*n), now));
        assert_eq!(admitted.count(), OBJECTS);
        assert!(!correlator.admits(&notice(2 * OBJECTS), now + IDLE - SECOND));
        assert!(correlator.admits(&notice(2 * OBJECTS), now + IDLE));
        assert_eq!(correlator.objects.len(), 1);
    }
}
