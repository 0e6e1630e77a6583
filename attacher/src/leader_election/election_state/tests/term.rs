//! The length and the end of a term.

use super::*;

#[test]
fn renewals_extend_the_term() {
    let mut fixture = Fixture::leading();
    let first = fixture.state.lease().unwrap().clone();
    fixture.at(5.0);
    fixture.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    let lease = fixture.granted(2);
    let (before, after) = (first.spec.unwrap(), lease.spec.unwrap());
    assert_eq!(after.acquire_time, before.acquire_time);
    assert_ne!(after.renew_time, before.renew_time);
    assert_eq!(after.lease_transitions, Some(0));
    fixture.at(19.4);
    assert!(fixture.leads());
    fixture.at(19.5);
    assert!(
        !fixture.leads(),
        "before another replica may lead, 15 s after it saw the last one"
    );
    assert_eq!(fixture.state.slow_renewals(), 0);
}

#[test]
fn renewal_extends_the_term_from_its_send_time() {
    let mut fixture = Fixture::leading();
    fixture.at(5.0);
    let sent = fixture.now;
    let mut lease = fixture.update();
    lease.metadata.resource_version = Some("2".to_owned());
    fixture.at(8.0);
    fixture.state.on_write(Ok(lease), sent, fixture.now, 0.5);
    assert_eq!(
        fixture.state.valid_until(),
        Some(fixture.begin + Duration::from_millis(19_500))
    );
    assert_eq!(fixture.wait(), 10.0);
}

/// Longer renew deadlines and retry periods make a renewal valid for longer, but never for as long as other replicas wait.
#[test]
fn renewal_is_valid_as_long_as_go_retries_and_shorter_than_others_wait() {
    for (lease_duration, renew_deadline, retry_period, valid) in [
        (15, 10, 5, 14.5),
        (60, 10, 5, 15.0),
        (30, 29, 10, 29.0),
        (137, 107, 26, 132.4),
    ] {
        let timings = Timings {
            lease_duration: lease_duration * SECOND,
            renew_deadline: renew_deadline * SECOND,
            retry_period: retry_period * SECOND,
        };
        let difference = timings.validity().as_secs_f64() - valid;
        assert!(difference.abs() < 0.1, "{timings:?}: {:?}", timings.validity());
    }
}

#[test]
fn retries_a_failed_renewal_faster() {
    let mut fixture = Fixture::leading();
    assert!(
        fixture.at(5.0).timeout() < 8.0,
        "time for another attempt is left"
    );
    fixture.at(8.0).refused(no_response());
    // A read shows its result.
    assert_eq!(fixture.request(), Request::Get);
    fixture
        .state
        .on_get(Err(no_response()), fixture.now, fixture.now, 0.5)
        .unwrap();
    let until = fixture.wait();
    assert!(until > 8.0 && until < 10.0, "{until}");
    assert_eq!(fixture.at(until).request(), Request::Get);
}

/// Our lease is paused once its last renewal is not valid any more.
fn mk_paused() -> Fixture {
    let mut fixture = Fixture::leading();
    fixture.at(5.0).update();
    fixture.refused(no_response());
    assert_eq!(fixture.at(15.0).request(), Request::Get);
    assert!(!fixture.leads());
    fixture
}

#[test]
fn paused_term_goes_on_if_the_lease_is_still_ours() {
    let mut fixture = mk_paused();
    let ours = fixture.state.lease().unwrap().clone();
    fixture.read(Some(ours));
    assert!(
        !fixture.leads(),
        "only a write proves that no other replica has it"
    );
    fixture.at(16.0).granted(2);
    assert!(fixture.leads());
    fixture.at(30.4);
    assert!(fixture.leads());
}

#[test]
fn paused_term_ends_if_another_replica_may_have_led() {
    let taken = |fixture: &mut Fixture, lease| {
        let lost = fixture.try_read(lease);
        assert!(matches!(lost, Err(LeadershipLost::Taken { .. })), "{lost:?}");
        assert!(
            !fixture.state.may_hold(),
            "another replica's lease is not released"
        );
    };
    taken(&mut mk_paused(), Some(mk_lease("b", 9, 15)));
    taken(&mut mk_paused(), Some(mk_lease("", 9, 15)));
    // Another replica may have created and deleted it.
    taken(&mut mk_paused(), None);
    // It is taken between our read and our write.
    let mut fixture = mk_paused();
    let ours = fixture.state.lease().unwrap().clone();
    fixture.read(Some(ours)).update();
    fixture.refused(LeaseError::Conflict);
    let until = fixture.wait();
    taken(fixture.at(until), Some(mk_lease("b", 9, 15)));
}

#[test]
fn gives_up_a_paused_term_when_it_becomes_unhealthy() {
    let mut fixture = mk_paused();
    fixture.at(34.9).request();
    let step = fixture.at(35.0).next();
    assert!(
        matches!(step, Step::Stop(LeadershipLost::Unrenewed { .. })),
        "{step:?}"
    );
    assert_eq!(fixture.state.valid_until(), None);
    assert!(
        !fixture.state.may_hold(),
        "a lease that another replica may hold is not released"
    );
}

#[test]
fn continues_the_term_after_a_conflict_if_the_lease_is_ours() {
    let mut fixture = Fixture::leading();
    let ours = fixture.state.lease().unwrap().clone();
    fixture.at(5.0).update();
    fixture.refused(LeaseError::Conflict);
    // Another client has labelled it.
    let labelled = Lease {
        metadata: ObjectMeta {
            resource_version: Some("9".to_owned()),
            labels: Some(BTreeMap::from([("owner".to_owned(), "them".to_owned())])),
            ..ours.metadata
        },
        ..ours
    };
    fixture.read(Some(labelled));
    let lease = fixture.granted(10);
    assert_eq!(lease.metadata.labels.unwrap()["owner"], "them");
    assert_eq!(fixture.state.slow_renewals(), 1);
    fixture.at(14.9);
    assert!(fixture.leads());
}

#[test]
fn another_holder_ends_the_term_at_once() {
    for (holder, version) in [("b", 9), ("", 9)] {
        let mut fixture = Fixture::leading();
        fixture.at(5.0).update();
        fixture.refused(LeaseError::Conflict);
        let lost = fixture.try_read(Some(mk_lease(holder, version, 15)));
        assert!(matches!(lost, Err(LeadershipLost::Taken { holder: by, .. }) if by == holder));
        assert!(!fixture.leads());
    }
}

#[test]
fn another_process_with_our_identity_ends_the_term_at_once() {
    let mut fixture = Fixture::leading();
    fixture.at(5.0).update();
    fixture.refused(LeaseError::Conflict);
    // The identity is ours, the acquireTime is not.
    let lost = fixture.try_read(Some(mk_lease("a", 9, 15))).unwrap_err();
    assert!(lost.to_string().contains("host name"), "{lost}");
    assert!(!fixture.leads());
}

#[test]
fn another_process_with_our_acquire_time_ends_the_term() {
    // As client-go does with our identity, when it finds our record.
    let mut fixture = Fixture::leading();
    let renewed = |lease: &Lease, version: u32, at: &str| {
        let mut lease = lease.clone();
        lease.metadata.resource_version = Some(version.to_string());
        lease.spec.as_mut().unwrap().renew_time = Some(MicroTime(at.parse().unwrap()));
        lease
    };
    let ours = fixture.state.lease().unwrap().clone();
    fixture.at(5.0);
    fixture.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    fixture.update();
    fixture.refused(LeaseError::Conflict);
    let theirs = renewed(&ours, 2, "2026-01-02T03:04:59Z");
    let lost = fixture.try_read(Some(theirs)).unwrap_err();
    assert!(matches!(lost, LeadershipLost::SameIdentity { .. }), "{lost}");

    // Our own renewal without a response does not count as another process's.
    let mut fixture = Fixture::leading();
    fixture.at(5.0);
    fixture.wall = "2026-01-02T03:05:00Z".parse().unwrap();
    let granted = fixture.update();
    fixture.refused(no_response());
    let version = granted.metadata.clone();
    let granted = Lease {
        metadata: ObjectMeta {
            resource_version: Some("2".to_owned()),
            ..version
        },
        ..granted
    };
    fixture.read(Some(granted.clone()));
    fixture.granted(3);
    // It is not released when another process holds it.
    fixture.state.resign();
    let ours = fixture.state.lease().unwrap().clone();
    let theirs = renewed(&ours, 4, "2026-01-02T03:05:01Z");
    assert_eq!(fixture.state.released(theirs, fixture.wall), None);
    assert!(fixture.state.released(ours, fixture.wall).is_some());
}

#[test]
fn leader_recreates_a_deleted_lease() {
    let mut fixture = Fixture::leading();
    fixture.at(5.0).update();
    fixture.refused(LeaseError::Rejected("not found".to_owned()));
    fixture.read(None).create();
    fixture.refused(LeaseError::Conflict);
    let until = fixture.wait();
    // Another replica was faster.
    let lost = fixture.at(until).try_read(Some(mk_lease("b", 1, 15)));
    assert!(matches!(lost, Err(LeadershipLost::Taken { .. })));
}

#[test]
fn suspension_pauses_the_term_despite_a_successful_renewal() {
    let mut fixture = Fixture::leading();
    fixture.at(5.0);
    let sent = fixture.now;
    let mut lease = fixture.update();
    lease.metadata.resource_version = Some("2".to_owned());
    fixture.at(35.0);
    assert!(!fixture.leads());
    fixture.state.on_write(Ok(lease), sent, fixture.now, 0.5);
    assert!(!fixture.leads());
    fixture.granted(3);
    assert!(fixture.leads());
}

#[test]
fn after_a_slow_response_a_renewal_may_take_longer() {
    let mut fixture = Fixture::new();
    fixture.read(None);
    let sent = fixture.now;
    let mut lease = fixture.create();
    lease.metadata.resource_version = Some("1".to_owned());
    fixture.at(7.3);
    fixture.state.on_write(Ok(lease), sent, fixture.now, 0.5);
    assert!((fixture.at(7.4).timeout() - 10.0).abs() < 0.01);
    // It is quick, so a dead connection must be noticed again.
    fixture.granted(2);
    assert!(fixture.at(13.0).timeout() < 8.0);
}
