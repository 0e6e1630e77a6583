//! The length and the end of a term.

use super::*;

#[test]
fn renewals_extend_the_term() {
    let mut rig = Rig::leading();
    let first = rig.state.lease().unwrap().clone();
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
    assert_eq!(rig.state.slow_renewals(), 0);
}

#[test]
fn a_renewal_counts_from_when_it_was_sent() {
    let mut rig = Rig::leading();
    rig.at(5.0);
    let sent = rig.now;
    let mut lease = rig.update();
    lease.metadata.resource_version = Some("2".to_owned());
    rig.at(8.0);
    rig.state.on_write(Ok(lease), sent, rig.now, 0.5);
    assert_eq!(rig.state.valid_until(), Some(rig.begin + 15 * SECOND));
    assert_eq!(rig.wait(), 10.0);
}

#[test]
fn retries_a_failed_renewal_faster_until_expiry() {
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
    // A read shows its result.
    assert_eq!(rig.request(), Request::Get);
    rig.state.on_get(Err(silence()), rig.now, rig.now, 0.5).unwrap();
    let until = rig.wait();
    assert!(until > 8.0 && until < 10.0, "{until}");
    rig.at(until);
    let Step::Send { request, deadline } = rig.next() else {
        panic!()
    };
    assert_eq!(request, Request::Get);
    assert_eq!(deadline, rig.begin + 10 * SECOND, "not longer than the term");
    rig.at(10.0);
    assert!(matches!(rig.next(), Step::Stop(LeadershipLost::Unrenewed { .. })));
    assert_eq!(rig.state.valid_until(), None);
    assert!(
        !rig.state.may_hold(),
        "nothing is given back that others may have"
    );
}

#[test]
fn continues_the_term_after_a_conflict_if_the_lease_is_ours() {
    let mut rig = Rig::leading();
    let ours = rig.state.lease().unwrap().clone();
    rig.at(5.0).update();
    rig.refused(LeaseError::Conflict);
    // Another client has labelled it.
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
    assert_eq!(rig.state.slow_renewals(), 1);
    rig.at(14.9);
    assert!(rig.leads());
}

#[test]
fn another_holder_ends_the_term_at_once() {
    for (holder, version) in [("b", 9), ("", 9)] {
        let mut rig = Rig::leading();
        rig.at(5.0).update();
        rig.refused(LeaseError::Conflict);
        let lost = rig.looks(Some(mk_lease(holder, version, 15)));
        assert!(matches!(lost, Err(LeadershipLost::Taken { holder: by, .. }) if by == holder));
        assert!(!rig.leads());
    }
}

#[test]
fn another_process_with_our_identity_ends_the_term_at_once() {
    let mut rig = Rig::leading();
    rig.at(5.0).update();
    rig.refused(LeaseError::Conflict);
    // The identity is ours, the acquireTime is not.
    let lost = rig.looks(Some(mk_lease("a", 9, 15))).unwrap_err();
    assert!(lost.to_string().contains("host name"), "{lost}");
    assert!(!rig.leads());
}

#[test]
fn another_process_with_our_acquire_time_ends_the_term() {
    // As client-go does with our identity, when it finds our record.
    let mut rig = Rig::leading();
    let renewed = |lease: &Lease, version: u32, at: &str| {
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(version.to_string());
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(at.parse().unwrap()));
        lease
    };
    let ours = rig.state.lease().unwrap().clone();
    rig.at(5.0);
    rig.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    rig.update();
    rig.refused(LeaseError::Conflict);
    let theirs = renewed(&ours, 2, "2026-01-02T03:04:59Z");
    let lost = rig.looks(Some(theirs)).unwrap_err();
    assert!(matches!(lost, LeadershipLost::SameIdentity { .. }), "{lost}");

    // Our own renewal without a response does not count as another process's.
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
    // It is not released when another process holds it.
    rig.state.resign();
    let ours = rig.state.lease().unwrap().clone();
    let theirs = renewed(&ours, 4, "2026-01-02T03:05:01Z");
    assert_eq!(rig.state.released(theirs, rig.wall), None);
    assert!(rig.state.released(ours, rig.wall).is_some());
}

#[test]
fn leader_recreates_a_deleted_lease() {
    let mut rig = Rig::leading();
    rig.at(5.0).update();
    rig.refused(LeaseError::Refused("not found".to_owned()));
    rig.look(None).create();
    rig.refused(LeaseError::Conflict);
    let until = rig.wait();
    // Another replica was faster.
    let lost = rig.at(until).looks(Some(mk_lease("b", 1, 15)));
    assert!(matches!(lost, Err(LeadershipLost::Taken { .. })));
}

#[test]
fn suspension_ends_the_term_despite_a_successful_renewal() {
    let mut rig = Rig::leading();
    rig.at(5.0);
    let sent = rig.now;
    let mut lease = rig.update();
    lease.metadata.resource_version = Some("2".to_owned());
    rig.at(35.0);
    assert!(!rig.leads());
    rig.state.on_write(Ok(lease), sent, rig.now, 0.5);
    assert!(!rig.leads());
    assert!(matches!(rig.next(), Step::Stop(LeadershipLost::Unrenewed { .. })));
}

#[test]
fn after_a_slow_response_a_renewal_may_take_the_rest_of_the_term() {
    let mut rig = Rig::new();
    rig.look(None);
    let sent = rig.now;
    let mut lease = rig.create();
    lease.metadata.resource_version = Some("1".to_owned());
    rig.at(4.8);
    rig.state.on_write(Ok(lease), sent, rig.now, 0.5);
    assert!((rig.at(5.0).timeout() - 5.0).abs() < 0.01);
    // It is quick, so a dead connection must be noticed again.
    rig.granted(2);
    assert!(rig.at(10.0).timeout() < 4.0);
}
