//! Acquisition of the lease by a standby.

use super::*;

#[test]
fn creates_a_missing_lease() {
    let mut fixture = Fixture::new();
    fixture.read(None);
    let lease = fixture.granted(1);
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 0));
    let json = serde_json::to_value(&lease).unwrap();
    assert_eq!(json["metadata"]["name"], "external-attacher-leader-d");
    // client-go parses exactly six digits.
    assert_eq!(json["spec"]["acquireTime"], "2026-01-02T03:04:05.123456Z");
    assert_eq!(json["spec"]["renewTime"], "2026-01-02T03:04:05.123456Z");
    assert!(fixture.leads());
    assert_eq!(fixture.wait(), 5.0, "the retry period");
}

#[test]
fn standby_waits_for_expiry_since_the_last_observed_change() {
    let mut fixture = Fixture::new();
    // The wrong timestamps of the Lease are ignored.
    fixture.read(Some(mk_lease("b", 1, 15)));
    assert!(!fixture.leads());
    assert_eq!(fixture.wait(), 8.0, "a retry period and half of the jitter");
    fixture.at(8.0).read(Some(mk_lease("b", 1, 15)));
    assert_eq!(fixture.wait(), 15.0, "the end of the lease comes first");
    fixture.at(14.0);
    fixture
        .state
        .on_watch_event(Some(mk_lease("b", 2, 15)), fixture.now, 0.5);
    fixture.at(22.0).read(Some(mk_lease("b", 2, 15)));
    assert_eq!(fixture.wait(), 29.0, "each observed change restarts the expiry");
    fixture.at(29.0).read(Some(mk_lease("b", 2, 15)));
    let lease = fixture.granted(3);
    assert_eq!(
        spec(&lease),
        ("a".to_owned(), 15, 8),
        "a transition to another holder"
    );
    assert!(fixture.leads());
}

#[test]
fn expiry_uses_the_recorded_duration() {
    let mut fixture = Fixture::new();
    fixture.read(Some(mk_lease("b", 1, 60)));
    fixture.at(59.9).read(Some(mk_lease("b", 1, 60)));
    assert_eq!(fixture.wait(), 60.0);
    fixture.at(60.0).read(Some(mk_lease("b", 1, 60)));
    fixture.update();
}

#[test]
fn acquires_a_released_lease_at_once() {
    let mut fixture = Fixture::new();
    fixture.read(Some(mk_lease("b", 1, 15)));
    fixture.at(1.0);
    fixture
        .state
        .on_watch_event(Some(mk_lease("", 2, 1)), fixture.now, 0.5);
    let lease = fixture.update();
    assert_eq!(lease.metadata.resource_version.as_deref(), Some("2"));
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 8));
}

#[test]
fn loser_of_a_conflict_stands_by() {
    let mut fixture = Fixture::new();
    fixture.read(Some(mk_lease("", 1, 1)));
    fixture.update();
    fixture.refused(LeaseError::Conflict);
    assert!(!fixture.leads());
    assert_eq!(fixture.wait(), 1.0, "it does not spin");
    fixture.at(8.0).read(Some(mk_lease("c", 2, 15)));
    assert!(fixture.wait() > 8.0);
    assert!(!fixture.state.may_hold());
}

#[test]
fn a_deleted_lease_does_not_end_the_term_of_its_holder() {
    let mut fixture = Fixture::new();
    fixture.read(Some(mk_lease("b", 1, 15)));
    fixture.at(1.0);
    fixture.state.on_watch_event(None, fixture.now, 0.5);
    assert!(fixture.wait() > 1.0, "b may not have noticed the deletion");
    fixture.at(9.0).read(None);
    assert_eq!(fixture.wait(), 15.0);
    fixture.at(15.0).read(None);
    fixture.create();
}

#[test]
fn takes_over_at_once_from_a_process_with_the_same_identity() {
    let mut fixture = Fixture::new();
    fixture.read(Some(mk_lease("a", 4, 15)));
    let lease = fixture.granted(5);
    assert_eq!(
        spec(&lease),
        ("a".to_owned(), 15, 7),
        "no transition to another holder"
    );
    assert!(fixture.leads());
}

#[test]
fn renews_a_late_claim_before_leading() {
    let mut fixture = Fixture::new();
    fixture.read(None);
    let sent = fixture.now;
    let mut lease = fixture.create();
    lease.metadata.resource_version = Some("1".to_owned());
    fixture.at(30.0);
    fixture.state.on_write(Ok(lease.clone()), sent, fixture.now, 0.5);
    assert!(!fixture.leads());
    fixture.read(Some(lease));
    fixture.granted(2);
    assert!(fixture.leads());
}

#[test]
fn waits_longer_after_a_timeout_until_a_quick_response() {
    let mut fixture = Fixture::new();
    assert!(fixture.timeout() < 8.0, "a dead connection must be noticed");
    let sent = fixture.now;
    fixture.at(7.4);
    fixture
        .state
        .on_get(Err(no_response()), sent, fixture.now, 0.5)
        .unwrap();
    let until = fixture.wait();
    let sent = fixture.at(until).now;
    assert_eq!(fixture.timeout(), 10.0);
    // This response is too slow for a first attempt.
    fixture.at(until + 9.0);
    fixture
        .state
        .on_get(Ok(Some(mk_lease("", 1, 1))), sent, fixture.now, 0.5)
        .unwrap();
    assert_eq!(fixture.timeout(), 10.0, "the claim, too");
    fixture.granted(2);
    assert!(fixture.leads());
    fixture.at(until + 14.0);
    assert!(fixture.timeout() < 8.0);
}

#[test]
fn holder_is_unknown_until_the_lease_is_read_and_empty_if_it_is_free() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.state.holder(), None);
    fixture.read(None);
    assert_eq!(fixture.state.holder(), Some(""));
    let mut fixture = Fixture::new();
    fixture.read(Some(mk_lease("b", 1, 15)));
    assert_eq!(fixture.state.holder(), Some("b"));
}
