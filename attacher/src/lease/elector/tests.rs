use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::LeaseSpec;

use super::*;
use crate::lease::{Place, Timings};

const SECOND: Duration = Duration::from_secs(1);

/// The Go sidecar's timings.
pub(in crate::lease) fn mk_settings(identity: &str) -> Settings {
    Settings {
        place: Place {
            namespace: "kube-system".to_owned(),
            name: "external-attacher-leader-d".to_owned(),
        },
        identity: identity.to_owned(),
        labels: BTreeMap::new(),
        timings: Timings {
            lease_duration: 15 * SECOND,
            renew_deadline: 10 * SECOND,
            retry_period: 5 * SECOND,
        },
    }
}

fn mk_lease(holder: &str, version: u32, seconds: i32) -> Lease {
    let long_ago = MicroTime("2001-02-03T04:05:06.789Z".parse().unwrap());
    Lease {
        metadata: ObjectMeta {
            name: Some("external-attacher-leader-d".to_owned()),
            namespace: Some("kube-system".to_owned()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(seconds),
            acquire_time: Some(long_ago.clone()),
            renew_time: Some(long_ago),
            lease_transitions: Some(7),
            ..LeaseSpec::default()
        }),
    }
}

/// An elector at the time `now`, by two clocks.
struct Rig {
    elector: Elector,
    begin: Instant,
    now: Instant,
    wall: Timestamp,
}

impl Rig {
    fn new() -> Self {
        Self::with(mk_settings("a"))
    }

    fn with(settings: Settings) -> Self {
        let begin = tokio::time::Instant::now().into_std();
        Self {
            elector: Elector::new(settings),
            begin,
            now: begin,
            wall: "2026-01-02T03:04:05.123456789Z".parse().unwrap(),
        }
    }

    /// A leader since 0 s.
    fn leading() -> Self {
        let mut rig = Self::new();
        rig.look(None);
        rig.granted(1);
        rig
    }

    fn at(&mut self, seconds: f64) -> &mut Self {
        self.now = self.begin + Duration::from_secs_f64(seconds);
        self
    }

    fn next(&mut self) -> Step {
        self.elector.next(self.now, self.wall)
    }

    fn request(&mut self) -> Request {
        match self.next() {
            Step::Send { request, .. } => request,
            step @ (Step::Wait(_) | Step::Stop(_)) => panic!("{step:?}"),
        }
    }

    /// What is sent, which must be an update.
    fn update(&mut self) -> Lease {
        match self.request() {
            Request::Update(lease) => *lease,
            request @ (Request::Look | Request::Create(_)) => panic!("{request:?}"),
        }
    }

    /// What is sent, which must create it.
    fn create(&mut self) -> Lease {
        match self.request() {
            Request::Create(lease) => *lease,
            request @ (Request::Look | Request::Update(_)) => panic!("{request:?}"),
        }
    }

    /// Seconds since the beginning until which there is nothing to do.
    fn wait(&mut self) -> f64 {
        match self.next() {
            Step::Wait(until) => (until - self.begin).as_secs_f64(),
            step @ (Step::Send { .. } | Step::Stop(_)) => panic!("{step:?}"),
        }
    }

    fn look(&mut self, lease: Option<Lease>) -> &mut Self {
        self.looks(lease).unwrap();
        self
    }

    fn looks(&mut self, lease: Option<Lease>) -> Result<(), Lost> {
        assert_eq!(self.request(), Request::Look);
        self.elector.looked(Ok(lease), self.now, 0.5)
    }

    /// Grants what is sent, as the API server does.
    fn granted(&mut self, version: u32) -> Lease {
        let mut lease = match self.request() {
            Request::Update(lease) | Request::Create(lease) => *lease,
            Request::Look => panic!("it only looks"),
        };
        lease.metadata.resource_version = Some(version.to_string());
        self.elector.wrote(Ok(lease.clone()), self.now, self.now, 0.5);
        lease
    }

    fn refused(&mut self, failure: Failure) {
        self.elector.wrote(Err(failure), self.now, self.now, 0.5);
    }

    fn leads(&self) -> bool {
        self.elector.valid_until().is_some_and(|until| self.now < until)
    }
}

fn spec(lease: &Lease) -> (String, i32, i32) {
    let spec = lease.spec.clone().unwrap();
    (
        spec.holder_identity.unwrap(),
        spec.lease_duration_seconds.unwrap(),
        spec.lease_transitions.unwrap(),
    )
}

fn silence() -> Failure {
    Failure::Unanswered("silence".to_owned())
}

#[test]
fn a_lease_that_is_not_there_is_created() {
    let mut rig = Rig::new();
    rig.look(None);
    let lease = rig.granted(1);
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 0));
    let json = serde_json::to_value(&lease).unwrap();
    assert_eq!(json["metadata"]["name"], "external-attacher-leader-d");
    // client-go reads six digits, no more and no less.
    assert_eq!(json["spec"]["acquireTime"], "2026-01-02T03:04:05.123456Z");
    assert_eq!(json["spec"]["renewTime"], "2026-01-02T03:04:05.123456Z");
    assert!(rig.leads());
    assert_eq!(rig.wait(), 5.0, "the retry period");
}

#[test]
fn a_standby_waits_for_the_lease_to_lapse_since_it_saw_it_change() {
    let mut rig = Rig::new();
    // Its times are of another century, and mean nothing.
    rig.look(Some(mk_lease("b", 1, 15)));
    assert!(!rig.leads());
    assert_eq!(rig.wait(), 8.0, "a retry period and half of the jitter");
    rig.at(8.0).look(Some(mk_lease("b", 1, 15)));
    assert_eq!(rig.wait(), 15.0, "the end of the lease comes first");
    rig.at(14.0);
    rig.elector.seen(Some(mk_lease("b", 2, 15)), rig.now, 0.5);
    rig.at(22.0).look(Some(mk_lease("b", 2, 15)));
    assert_eq!(rig.wait(), 29.0, "a renewal, whatever it says, is a sign of life");
    rig.at(29.0).look(Some(mk_lease("b", 2, 15)));
    let lease = rig.granted(3);
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 8), "it changes hands");
    assert!(rig.leads());
}

#[test]
fn the_duration_that_counts_is_the_one_in_the_record() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("b", 1, 60)));
    rig.at(59.9).look(Some(mk_lease("b", 1, 60)));
    assert_eq!(rig.wait(), 60.0);
    rig.at(60.0).look(Some(mk_lease("b", 1, 60)));
    rig.update();
}

#[test]
fn a_released_lease_is_taken_at_once() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("b", 1, 15)));
    rig.at(1.0);
    rig.elector.seen(Some(mk_lease("", 2, 1)), rig.now, 0.5);
    let lease = rig.update();
    assert_eq!(lease.metadata.resource_version.as_deref(), Some("2"));
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 8));
}

#[test]
fn of_two_that_take_it_the_one_who_is_late_stands_by() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("", 1, 1)));
    rig.update();
    rig.refused(Failure::Conflict);
    assert!(!rig.leads());
    assert_eq!(rig.wait(), 1.0, "it does not spin");
    rig.at(8.0).look(Some(mk_lease("c", 2, 15)));
    assert!(rig.wait() > 8.0);
    assert!(!rig.elector.may_hold());
}

#[test]
fn a_deleted_lease_does_not_end_the_term_of_its_holder() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("b", 1, 15)));
    rig.at(1.0);
    rig.elector.seen(None, rig.now, 0.5);
    assert!(rig.wait() > 1.0, "b may not know yet");
    rig.at(9.0).look(None);
    assert_eq!(rig.wait(), 15.0);
    rig.at(15.0).look(None);
    rig.create();
}

#[test]
fn an_earlier_process_of_the_same_name_is_followed_at_once() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("a", 4, 15)));
    let lease = rig.granted(5);
    assert_eq!(
        spec(&lease),
        ("a".to_owned(), 15, 7),
        "it stays in the same hands"
    );
    assert!(rig.leads());
}

#[test]
fn renewals_keep_the_term_and_move_its_end() {
    let mut rig = Rig::leading();
    let first = rig.elector.lease().unwrap().clone();
    rig.at(5.0);
    rig.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    let lease = rig.granted(2);
    let (before, after) = (first.spec.unwrap(), lease.spec.unwrap());
    assert_eq!(after.acquire_time, before.acquire_time);
    assert_ne!(after.renew_time, before.renew_time);
    assert_eq!(after.lease_transitions, Some(0));
    rig.at(14.9);
    assert!(rig.leads());
    rig.at(15.0);
    assert!(!rig.leads(), "a renew deadline after the last one was sent");
    assert_eq!(rig.elector.slow_renewals(), 0);
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    let mut rig = Rig::leading();
    rig.at(5.0);
    let sent = rig.now;
    let mut lease = rig.update();
    lease.metadata.resource_version = Some("2".to_owned());
    rig.at(8.0);
    rig.elector.wrote(Ok(lease), sent, rig.now, 0.5);
    assert_eq!(rig.elector.valid_until(), Some(rig.begin + 15 * SECOND));
    assert_eq!(rig.wait(), 10.0);
}

#[test]
fn a_failed_renewal_is_tried_again_in_haste_until_the_term_is_over() {
    let mut rig = Rig::leading();
    rig.at(5.0);
    let Step::Send { deadline, .. } = rig.next() else {
        panic!()
    };
    assert!(
        deadline < rig.begin + 9 * SECOND,
        "time for another attempt is left"
    );
    rig.at(8.0).refused(silence());
    // What became of it is seen by looking.
    assert_eq!(rig.request(), Request::Look);
    rig.elector.looked(Err(silence()), rig.now, 0.5).unwrap();
    let until = rig.wait();
    assert!(until > 8.0 && until < 10.0, "{until}");
    rig.at(until);
    let Step::Send { request, deadline } = rig.next() else {
        panic!()
    };
    assert_eq!(request, Request::Look);
    assert_eq!(deadline, rig.begin + 10 * SECOND, "not longer than the term");
    rig.at(10.0);
    assert!(matches!(rig.next(), Step::Stop(Lost::Unrenewed { .. })));
    assert_eq!(rig.elector.valid_until(), None);
    assert!(
        !rig.elector.may_hold(),
        "nothing is given back that others may have"
    );
}

#[test]
fn a_slow_renewal_goes_on_where_the_lease_is_still_ours() {
    let mut rig = Rig::leading();
    let ours = rig.elector.lease().unwrap().clone();
    rig.at(5.0).update();
    rig.refused(Failure::Conflict);
    // Somebody has labelled it.
    let labelled = Lease {
        metadata: ObjectMeta {
            resource_version: Some("9".to_owned()),
            labels: Some(BTreeMap::from([("owner".to_owned(), "them".to_owned())])),
            ..ours.metadata
        },
        ..ours
    };
    rig.look(Some(labelled));
    let lease = rig.granted(10);
    assert_eq!(lease.metadata.labels.unwrap()["owner"], "them");
    assert_eq!(rig.elector.slow_renewals(), 1);
    rig.at(14.9);
    assert!(rig.leads());
}

#[test]
fn a_lease_in_other_hands_ends_the_term_at_once() {
    for (holder, version) in [("b", 9), ("", 9)] {
        let mut rig = Rig::leading();
        rig.at(5.0).update();
        rig.refused(Failure::Conflict);
        let lost = rig.looks(Some(mk_lease(holder, version, 15)));
        assert!(matches!(lost, Err(Lost::Taken { holder: by, .. }) if by == holder));
        assert!(!rig.leads());
    }
}

#[test]
fn a_twin_ends_the_term_at_once() {
    let mut rig = Rig::leading();
    rig.at(5.0).update();
    rig.refused(Failure::Conflict);
    // The name is ours, the time at which it was acquired is not.
    let lost = rig.looks(Some(mk_lease("a", 9, 15))).unwrap_err();
    assert!(lost.to_string().contains("host name"), "{lost}");
    assert!(!rig.leads());
}

#[test]
fn a_twin_that_keeps_our_acquire_time_ends_the_term_too() {
    // As client-go does, which leads in our name and finds the record that we wrote over its own.
    let mut rig = Rig::leading();
    let renewed = |lease: &Lease, version: u32, at: &str| {
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(version.to_string());
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(at.parse().unwrap()));
        lease
    };
    let ours = rig.elector.lease().unwrap().clone();
    rig.at(5.0);
    rig.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    rig.update();
    rig.refused(Failure::Conflict);
    let theirs = renewed(&ours, 2, "2026-01-02T03:04:59Z");
    let lost = rig.looks(Some(theirs)).unwrap_err();
    assert!(matches!(lost, Lost::Twin { .. }), "{lost}");

    // A renewal of ours that was granted without an answer is no twin's.
    let mut rig = Rig::leading();
    rig.at(5.0);
    rig.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    let granted = rig.update();
    rig.refused(silence());
    let version = granted.metadata.clone();
    let granted = Lease {
        metadata: ObjectMeta {
            resource_version: Some("2".to_owned()),
            ..version
        },
        ..granted
    };
    rig.look(Some(granted.clone()));
    rig.granted(3);
    // Nor is it given back in our name when it is a twin's by then.
    rig.elector.resign();
    let ours = rig.elector.lease().unwrap().clone();
    let theirs = renewed(&ours, 4, "2026-01-02T03:05:01Z");
    assert_eq!(rig.elector.released(theirs, rig.wall), None);
    assert!(rig.elector.released(ours, rig.wall).is_some());
}

#[test]
fn a_leader_creates_its_lease_again_when_somebody_deleted_it() {
    let mut rig = Rig::leading();
    rig.at(5.0).update();
    rig.refused(Failure::Refused("not found".to_owned()));
    rig.look(None).create();
    rig.refused(Failure::Conflict);
    let until = rig.wait();
    // Somebody else was faster.
    let lost = rig.at(until).looks(Some(mk_lease("b", 1, 15)));
    assert!(matches!(lost, Err(Lost::Taken { .. })));
}

#[test]
fn after_a_suspension_the_term_is_over_even_if_its_renewal_was_granted() {
    let mut rig = Rig::leading();
    rig.at(5.0);
    let sent = rig.now;
    let mut lease = rig.update();
    lease.metadata.resource_version = Some("2".to_owned());
    rig.at(35.0);
    assert!(!rig.leads());
    rig.elector.wrote(Ok(lease), sent, rig.now, 0.5);
    assert!(!rig.leads());
    assert!(matches!(rig.next(), Step::Stop(Lost::Unrenewed { .. })));
}

#[test]
fn a_claim_whose_grant_came_too_late_is_renewed_before_it_counts() {
    let mut rig = Rig::new();
    rig.look(None);
    let sent = rig.now;
    let mut lease = rig.create();
    lease.metadata.resource_version = Some("1".to_owned());
    rig.at(30.0);
    rig.elector.wrote(Ok(lease.clone()), sent, rig.now, 0.5);
    assert!(!rig.leads());
    rig.look(Some(lease));
    rig.granted(2);
    assert!(rig.leads());
}

#[test]
fn what_is_given_back_is_what_client_go_gives_back() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("", 3, 1)));
    let held = rig.granted(4);
    assert_eq!(
        rig.elector.released(held.clone(), rig.wall),
        None,
        "not while we lead"
    );
    rig.elector.resign();
    assert!(!rig.leads());
    for other in ["b", "a"] {
        let other = mk_lease(other, 5, 15);
        assert_eq!(rig.elector.released(other, rig.wall), None);
    }
    let lease = rig.elector.released(held, rig.wall).unwrap();
    assert_eq!(spec(&lease), (String::new(), 1, 8));
    assert_eq!(
        lease.metadata.resource_version.as_deref(),
        Some("4"),
        "over what we wrote"
    );
    let spec = lease.spec.unwrap();
    assert_eq!(spec.acquire_time, spec.renew_time);
}

#[test]
fn a_claim_without_an_answer_may_be_given_back() {
    let mut rig = Rig::new();
    rig.look(None);
    let lease = rig.create();
    rig.refused(silence());
    assert!(rig.elector.may_hold());
    assert!(rig.elector.released(lease, rig.wall).is_some());
    // A second one carries the same mark, so that either is known for ours.
    let until = rig.wait();
    rig.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    let lease = rig.at(until).look(None).create();
    rig.refused(Failure::Refused("forbidden".to_owned()));
    assert!(!rig.elector.may_hold());
    assert_eq!(
        serde_json::to_value(&lease).unwrap()["spec"]["acquireTime"],
        "2026-01-02T03:04:05.123456Z"
    );
}

#[test]
fn labels_are_added_and_durations_rounded_up() {
    let mut settings = mk_settings("a");
    settings.labels = BTreeMap::from([("team".to_owned(), "storage".to_owned())]);
    settings.timings.lease_duration = Duration::from_millis(12_100);
    let mut rig = Rig::with(settings);
    let mut free = mk_lease("", 1, 1);
    free.metadata.labels = Some(BTreeMap::from([("owner".to_owned(), "them".to_owned())]));
    let lease = rig.look(Some(free)).update();
    let labels = lease.metadata.labels.as_ref().unwrap();
    assert_eq!((&*labels["team"], &*labels["owner"]), ("storage", "them"));
    assert_eq!(spec(&lease).1, 13, "others must not take it while it lasts");
}
