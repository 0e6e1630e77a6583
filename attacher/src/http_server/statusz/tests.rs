//! `/statusz` of hand-made states.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::tests::{fail_one, get, mk_leadership, mk_standby, mk_state, mk_unlisted, mk_view};
use super::*;
use crate::controller::state::{Event, Round};
use crate::workqueue::Class;

fn text(view: &Arc<View>) -> String {
    let (status, text) = get(view, "/statusz");
    assert_eq!(status, 200);
    text
}

fn json(view: &Arc<View>) -> serde_json::Value {
    let (status, text) = get(view, "/statusz?pretty=1&format=json");
    assert_eq!(status, 200);
    serde_json::from_str(&text).expect("the page is JSON")
}

#[tokio::test]
async fn a_process_that_has_just_started_says_what_it_waits_for() {
    let text = text(&mk_view());
    assert!(
        text.contains("NOT READY: the CSI driver is not connected"),
        "{text}"
    );
    assert!(text.contains("workers not started"), "{text}");
}

#[tokio::test]
async fn work_is_named_with_its_stage_and_its_last_error() {
    let view = mk_view();
    let names = ["va-1", "va-2", "va-3"].map(str::to_owned);
    let mut state = mk_state(&names);
    fail_one(
        &mut state,
        Class::Final,
        "rpc error: code = Internal\ndesc = \u{1b}[31mboom",
    );
    let now = tokio::time::Instant::now().into_std();
    assert!(state.start(now).is_some());
    view.work_begins(Arc::new(Mutex::new(state)));
    let text = text(&view);
    for part in [
        "attach           1/1         1         1   1m00s",
        "RUNNING: 1\n",
        "QUEUED: 1\n",
        "IN BACKOFF: 1\n",
        "volume pv  node node",
        "requested 1m00s ago",
        "retry in",
        "failed 1 time in",
        "last: rpc error: code = Internal desc = \\u{1b}[31mboom\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_last_comparison_with_the_drivers_list_is_told() {
    let view = mk_view();
    view.work_begins(Arc::new(Mutex::new(mk_state(&[]))));
    assert!(!text(&view).contains("reconcile"), "there was none");
    let round = Round {
        ended: tokio::time::Instant::now().into_std(),
        took: Duration::from_millis(1500),
        listed: 1200,
    };
    let state = view.state.lock().unwrap().clone().unwrap();
    let why = "ListVolumes failed: rpc error:\ncode = Unavailable";
    state
        .lock()
        .unwrap()
        .handle(Event::ListVolumesFailed(round, why.into()));
    tokio::time::advance(Duration::from_secs(70)).await;
    let text = text(&view);
    for line in [
        "reconcile     last round 1m10s ago in 1.5s, 1200 volumes listed\n",
        "              FAILED: ListVolumes failed: rpc error: code = Unavailable\n",
        "              0 rounds completed, 1 failed; 0 repairs succeeded, 0 refused\n",
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_let_do_nothing_says_so() {
    let view = mk_view();
    view.election_begins(mk_standby(None, Some("leases is forbidden (HTTP 403)")));
    view.work_begins(Arc::new(Mutex::new(mk_unlisted())));
    for resource in ["persistentvolumes", "csinodes"] {
        view.requests
            .fail_one(resource, "cannot list: forbidden (HTTP 403)");
    }
    view.requests.count_one("/api/v1/persistentvolumes", 403);
    tokio::time::advance(Duration::from_secs(20)).await;
    view.requests.count_one("/apis/storage.k8s.io/v1/csinodes", 403);
    view.requests
        .fail_one("csinodes", "cannot list: still forbidden (HTTP 403)");
    tokio::time::advance(Duration::from_secs(2)).await;
    let text = text(&view);
    for lines in [
        "leadership    standby as pod-1; lease kube-system/external-attacher-leader-d-example, holder UNKNOWN
              FAILED 1 time in 22s, last 22s ago: leases is forbidden (HTTP 403)\n",
        "API server    last response 2.0s ago, NO SUCCESS YET, 0 in flight
              2 refused, last 2.0s ago: list csinodes: HTTP 403\n",
        "caches              0 volumeattachments; listed by the leader\n",
        "                    0 persistentvolumes so far; cache not synced
              FAILED 1 time in 22s, last 22s ago: cannot list: forbidden (HTTP 403)\n",
        "                    0 csinodes so far; cache not synced
              FAILED 2 times in 22s, last 2.0s ago: cannot list: still forbidden (HTTP 403)\n",
    ] {
        assert!(text.contains(lines), "{lines}is not in\n{text}");
    }
    let json = json(&view);
    assert_eq!(json["leaderElection"]["holder"], serde_json::Value::Null);
    assert_eq!(json["leaderElection"]["failure"]["times"], 1);
    assert_eq!(json["api"]["lastSuccess"], serde_json::Value::Null);
    assert_eq!(json["api"]["refused"]["count"], 2);
    assert_eq!(json["lists"][2]["failure"]["times"], 2);
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_told_as_we_know_it() {
    let lease = "lease kube-system/external-attacher-leader-d-example";
    for (leadership, line) in [
        (
            mk_standby(Some(""), None),
            format!("standby as pod-1; {lease}, no holder\n"),
        ),
        (
            mk_standby(Some("pod-2"), None),
            format!("standby as pod-1; {lease}, held by pod-2\n"),
        ),
        (
            mk_leadership(true, Some(Duration::from_secs(3))),
            format!("leader as pod-1; {lease}, held by pod-1, last renewed 3.0s ago\n"),
        ),
    ] {
        let view = mk_view();
        view.election_begins(leadership);
        let text = text(&view);
        assert!(text.contains(&line), "{line}is not in\n{text}");
    }
}

#[tokio::test]
async fn a_long_backlog_is_cut_and_counted() {
    let view = mk_view();
    let names: Vec<String> = (0..60).map(|n| format!("va-{n:02}")).collect();
    view.work_begins(Arc::new(Mutex::new(mk_state(&names))));
    let text = text(&view);
    assert_eq!(text.matches("  attach  va-").count(), 50, "{text}");
    assert!(text.contains("  ... and 10 more\n"), "{text}");
}

#[tokio::test]
async fn machines_get_the_same_as_json() {
    let view = mk_view();
    let mut state = mk_state(&["va-1".to_owned()]);
    fail_one(&mut state, Class::Uncertain, "late");
    view.work_begins(Arc::new(Mutex::new(state)));
    let json = json(&view);
    assert_eq!(json["waiting"][0]["name"], "va-1");
    assert_eq!(json["waiting"][0]["error"], "late");
    assert_eq!(json["waiting"][0]["failures"], 1);
    assert_eq!(json["lanes"][0]["lane"], "attach");
    assert_eq!(json["lists"][0]["complete"], true);
    assert_eq!(get(&view, "/statusz?format=xml").0, 400);
}

#[test]
fn durations_are_told_in_the_units_that_matter() {
    for (seconds, told) in [
        (0.04, "0.0s"),
        (1.26, "1.3s"),
        (-3.0, "0.0s"),
        (59.9, "59s"),
        (61.0, "1m01s"),
        (3_600.0, "1h00m"),
        (90_000.0, "1d01h"),
    ] {
        assert_eq!(For(seconds).to_string(), told);
    }
}
