//! How a standby acquires the lease.

use super::*;

#[test]
fn creates_a_missing_lease() {
    let mut rig = Rig::new();
    rig.look(None);
    let lease = rig.granted(1);
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 0));
    let json = serde_json::to_value(&lease).unwrap();
    assert_eq!(json["metadata"]["name"], "external-attacher-leader-d");
    // client-go parses exactly six digits.
    assert_eq!(json["spec"]["acquireTime"], "2026-01-02T03:04:05.123456Z");
    assert_eq!(json["spec"]["renewTime"], "2026-01-02T03:04:05.123456Z");
    assert!(rig.leads());
    assert_eq!(rig.wait(), 5.0, "the retry period");
}

#[test]
fn standby_waits_for_expiry_since_the_last_observed_change() {
    let mut rig = Rig::new();
    // Its timestamps are wrong, and ignored.
    rig.look(Some(mk_lease("b", 1, 15)));
    assert!(!rig.leads());
    assert_eq!(rig.wait(), 8.0, "a retry period and half of the jitter");
    rig.at(8.0).look(Some(mk_lease("b", 1, 15)));
    assert_eq!(rig.wait(), 15.0, "the end of the lease comes first");
    rig.at(14.0);
    rig.state.on_watch_event(Some(mk_lease("b", 2, 15)), rig.now, 0.5);
    rig.at(22.0).look(Some(mk_lease("b", 2, 15)));
    assert_eq!(rig.wait(), 29.0, "a renewal, whatever it says, is a sign of life");
    rig.at(29.0).look(Some(mk_lease("b", 2, 15)));
    let lease = rig.granted(3);
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 8), "it changes hands");
    assert!(rig.leads());
}

#[test]
fn expiry_uses_the_recorded_duration() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("b", 1, 60)));
    rig.at(59.9).look(Some(mk_lease("b", 1, 60)));
    assert_eq!(rig.wait(), 60.0);
    rig.at(60.0).look(Some(mk_lease("b", 1, 60)));
    rig.update();
}

#[test]
fn acquires_a_released_lease_at_once() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("b", 1, 15)));
    rig.at(1.0);
    rig.state.on_watch_event(Some(mk_lease("", 2, 1)), rig.now, 0.5);
    let lease = rig.update();
    assert_eq!(lease.metadata.resource_version.as_deref(), Some("2"));
    assert_eq!(spec(&lease), ("a".to_owned(), 15, 8));
}

#[test]
fn loser_of_a_conflict_stands_by() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("", 1, 1)));
    rig.update();
    rig.refused(LeaseError::Conflict);
    assert!(!rig.leads());
    assert_eq!(rig.wait(), 1.0, "it does not spin");
    rig.at(8.0).look(Some(mk_lease("c", 2, 15)));
    assert!(rig.wait() > 8.0);
    assert!(!rig.state.may_hold());
}

#[test]
fn a_deleted_lease_does_not_end_the_term_of_its_holder() {
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("b", 1, 15)));
    rig.at(1.0);
    rig.state.on_watch_event(None, rig.now, 0.5);
    assert!(rig.wait() > 1.0, "b may not know yet");
    rig.at(9.0).look(None);
    assert_eq!(rig.wait(), 15.0);
    rig.at(15.0).look(None);
    rig.create();
}

#[test]
fn takes_over_at_once_from_a_process_with_the_same_identity() {
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
fn renews_a_late_claim_before_leading() {
    let mut rig = Rig::new();
    rig.look(None);
    let sent = rig.now;
    let mut lease = rig.create();
    lease.metadata.resource_version = Some("1".to_owned());
    rig.at(30.0);
    rig.state.on_write(Ok(lease.clone()), sent, rig.now, 0.5);
    assert!(!rig.leads());
    rig.look(Some(lease));
    rig.granted(2);
    assert!(rig.leads());
}

#[test]
fn waits_longer_after_a_timeout_until_a_quick_response() {
    let mut rig = Rig::new();
    assert!(rig.timeout() < 4.0, "a dead connection must be noticed");
    let sent = rig.now;
    rig.at(3.4);
    rig.state.on_get(Err(silence()), sent, rig.now, 0.5).unwrap();
    let until = rig.wait();
    let sent = rig.at(until).now;
    assert_eq!(rig.timeout(), 10.0);
    // This response is too slow for a first attempt.
    rig.at(until + 9.0);
    rig.state
        .on_get(Ok(Some(mk_lease("", 1, 1))), sent, rig.now, 0.5)
        .unwrap();
    assert_eq!(rig.timeout(), 10.0, "the claim, too");
    rig.granted(2);
    assert!(rig.leads());
    rig.at(until + 14.0);
    assert!(rig.timeout() < 4.0);
}

#[test]
fn holder_is_unknown_until_the_lease_is_read_and_empty_if_it_is_free() {
    let mut rig = Rig::new();
    assert_eq!(rig.state.holder(), None);
    rig.look(None);
    assert_eq!(rig.state.holder(), Some(""));
    let mut rig = Rig::new();
    rig.look(Some(mk_lease("b", 1, 15)));
    assert_eq!(rig.state.holder(), Some("b"));
}
