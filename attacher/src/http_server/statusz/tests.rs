//! `/statusz` for given states.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

use super::super::tests::{
    fail_one, get, mk_leadership, mk_standby, mk_state, mk_unlisted, mk_view, refuse_detach_beside,
};
use super::*;
use crate::controller::state::{Event, Round};
use crate::workqueue::Class;

fn text(view: &Arc<View>) -> String {
    let (status, text) = get(view, "/statusz");
    assert_eq!(status, 200);
    text
}

fn json(view: &Arc<View>) -> Value {
    let (status, text) = get(view, "/statusz?pretty=1&format=json");
    assert_eq!(status, 200);
    serde_json::from_str(&text).expect("the page is JSON")
}

#[tokio::test]
async fn shows_what_is_not_ready_after_the_start() {
    let view = mk_view();
    let text = text(&view);
    assert!(text.contains("- the CSI driver is not connected\n"), "{text}");
    assert!(text.contains("\nlanes: []\n"), "{text}");
    assert_eq!(json(&view)["notReady"][0], "the CSI driver is not connected");
}

#[tokio::test(start_paused = true)]
async fn shows_work_items_with_stage_and_last_error() {
    let view = mk_view();
    let names = ["va-1", "va-2", "va-3"].map(str::to_owned);
    let mut state = mk_state(&names);
    let error = "rpc error: code = Internal\ndesc = \u{1b}[31mboom";
    fail_one(&mut state, Class::Final, error);
    let now = tokio::time::Instant::now().into_std();
    assert!(state.start(now).is_some());
    view.work_begins(Arc::new(Mutex::new(state)));
    let next = json(&view)["waiting"][0]["next"].as_f64();
    assert!(next.is_some_and(|next| next > 0.0 && next <= 1.0), "{next:?}");
    tokio::time::advance(Duration::from_secs(3)).await;
    let json = json(&view);
    assert_eq!(json["lists"][0]["objects"], 3);
    for (stage, elapsed) in [("running", Some(3.0)), ("ready", Some(3.0)), ("waiting", None)] {
        let shown = json[stage][0]["elapsed"].as_f64();
        assert_eq!(shown.map(f64::round), elapsed, "{stage}");
    }
    let attach = &json["lanes"][0];
    let counts = ["limit", "running", "ready", "waiting"].map(|stage| attach[stage].as_u64());
    assert_eq!((&attach["lane"], counts), (&"attach".into(), [Some(1); 4]));
    for stage in ["running", "ready", "waiting"] {
        let work = &json[stage][0];
        assert_eq!(
            (&work["volume"], &work["node"]),
            (&"pv".into(), &"node".into()),
            "{stage}"
        );
        let requested = work["wanted"].as_f64().expect("it is known");
        assert_eq!(requested.floor() as u64, 60, "{stage}");
    }
    let failed = &json["waiting"][0];
    assert!(
        failed["next"].is_number() && failed["why"].is_string(),
        "{failed}"
    );
    assert_eq!(
        (&failed["failures"], &failed["error"]),
        (&1.into(), &error.into())
    );
    let text = text(&view);
    assert!(text.contains("boom") && text.contains("name: va-3"), "{text}");
    assert!(!text.contains('\u{1b}'), "a terminal would interpret it");
}

#[tokio::test(start_paused = true)]
async fn shows_that_an_item_waits_for_its_turn_on_a_node() {
    let view = mk_view();
    let mut state = mk_state(&["va-1", "va-2"].map(str::to_owned));
    refuse_detach_beside(&mut state, "va-1");
    view.work_begins(Arc::new(Mutex::new(state)));
    let ready = &json(&view)["ready"][0];
    assert_eq!(
        (&ready["name"], &ready["why"]),
        (
            &"va-2".into(),
            &"waits for its turn on node node (limit 1 learned)".into()
        )
    );
}

#[tokio::test(start_paused = true)]
async fn shows_the_last_reconcile_round() {
    let view = mk_view();
    view.work_begins(Arc::new(Mutex::new(mk_state(&[]))));
    assert_eq!(json(&view)["reconcile"], Value::Null, "there was none");
    let round = Round {
        ended: tokio::time::Instant::now().into_std(),
        took: Duration::from_millis(1500),
        listed: 1200,
    };
    let state = view.state.lock().unwrap().clone().unwrap();
    let why = "ListVolumes failed: rpc error: code = Unavailable";
    state
        .lock()
        .unwrap()
        .handle(Event::ListVolumesFailed(round, why.into()));
    tokio::time::advance(Duration::from_secs(70)).await;
    let expected = json!({
        "last": 70.0, "took": 1.5, "listed": 1200, "lost": 0, "dangling": 0, "error": why,
        "completed": 0, "failed": 1, "repaired": 0, "refused": 0,
    });
    assert_eq!(json(&view)["reconcile"], expected);
}

#[tokio::test(start_paused = true)]
async fn shows_missing_permissions() {
    let view = mk_view();
    view.election_begins(mk_standby(None, Some("leases is forbidden (HTTP 403)")));
    view.work_begins(Arc::new(Mutex::new(mk_unlisted())));
    for resource in ["persistentvolumes", "csinodes"] {
        view.requests
            .watch_failed(resource.into(), "cannot list: forbidden (HTTP 403)");
    }
    tokio::time::advance(Duration::from_secs(20)).await;
    view.requests
        .watch_failed("csinodes".into(), "cannot list: still forbidden (HTTP 403)");
    tokio::time::advance(Duration::from_secs(2)).await;
    let status = json(&view);
    let failure = |times: u32, last: f64, error: &str| json!({ "times": times, "failing": 22.0, "last": last, "error": error });
    assert_eq!(
        status["leaderElection"],
        json!({
            "lease": "kube-system/external-attacher-leader-d-example", "identity": "pod-1", "leads": false,
            "holder": null, "renewed": null, "problem": null,
            "failure": failure(1, 22.0, "leases is forbidden (HTTP 403)"),
        })
    );
    let list = |resource: &str, failure: Value| json!({ "resource": resource, "complete": false, "objects": 0, "failure": failure });
    assert_eq!(
        status["lists"],
        json!([
            list("volumeattachments", Value::Null),
            list(
                "persistentvolumes",
                failure(1, 22.0, "cannot list: forbidden (HTTP 403)")
            ),
            list(
                "csinodes",
                failure(2, 2.0, "cannot list: still forbidden (HTTP 403)")
            ),
        ])
    );
}

#[tokio::test(start_paused = true)]
async fn shows_lease_holder_and_renewal() {
    for (leadership, leads, holder, renewed) in [
        (mk_standby(Some(""), None), false, "", None),
        (mk_standby(Some("pod-2"), None), false, "pod-2", None),
        (
            mk_leadership(true, Some(Duration::from_secs(3))),
            true,
            "pod-1",
            Some(3.0),
        ),
    ] {
        let view = mk_view();
        view.election_begins(leadership);
        let election = &json(&view)["leaderElection"];
        assert_eq!(
            (&election["leads"], &election["holder"]),
            (&leads.into(), &holder.into())
        );
        assert_eq!(election["renewed"].as_f64(), renewed);
    }
}

#[tokio::test]
async fn truncates_and_counts_a_long_backlog() {
    let view = mk_view();
    let names: Vec<String> = (0..60).map(|n| format!("va-{n:02}")).collect();
    view.work_begins(Arc::new(Mutex::new(mk_state(&names))));
    let text = text(&view);
    assert_eq!(text.matches("name: va-").count(), 50, "{text}");
    assert_eq!(json(&view)["lanes"][0]["ready"], 60);
}

#[tokio::test]
async fn serves_json_and_rejects_other_formats() {
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
