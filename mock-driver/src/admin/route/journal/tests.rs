use csi_proto::Secrets;
use csi_proto::v1::{ControllerPublishVolumeRequest, DeleteVolumeRequest, NodeGetInfoRequest, ProbeRequest};
use prost::Message;
use serde_json::json;
use tokio_test::{assert_pending, assert_ready, task};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::admin_api::resource::ExpectationStatus;
use crate::driver::{Driver, Settings};

fn mk_admin() -> Admin {
    let mut settings = Settings::default();
    settings.journal_config.kept = 10_000;
    let (driver, _) = Driver::open(settings).unwrap();
    Admin {
        driver,
        stop: CancellationToken::new(),
        started: jiff::Timestamp::now(),
    }
}

fn probe(journal: &Arc<Journal>) {
    end(journal, Method::Probe, &ProbeRequest {});
}

fn end<M: Message + Secrets + Clone>(journal: &Arc<Journal>, method: Method, request: &M) {
    let request = journal.renderer.keep(request);
    let mut record = journal.begin(method.path().into(), None, request);
    record.end(Status::ok(""), None);
}

#[tokio::test]
async fn waiting_readers_visit_each_call_once() {
    const BEFORE: u64 = 5_000;
    // Stays below tokio's cooperative budget: the test is one poll of its task.
    const EVENTS: u64 = 20;
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    for _ in 0..BEFORE {
        probe(journal);
    }
    let count = usize::try_from(BEFORE + EVENTS).unwrap();
    let query = serde_json::from_value(json!({"method": "Probe", "count": count})).unwrap();
    let mut waiting = task::spawn(wait(&admin, query));
    let expectation = json!({
        "expected": [{"method": "Probe", "code": "OK"}, {"method": "DeleteVolume", "code": "OK"}],
        "timeout": "600s",
    });
    let expectation = serde_json::from_value(expectation).unwrap();
    let mut asserting = task::spawn(assert(&admin, expectation));
    let visited = || journal.read(|memory| memory.visited.get());
    assert_pending!(waiting.poll());
    assert_pending!(asserting.poll());
    assert_eq!(visited(), 2 * BEFORE, "each reader has visited each call");
    for event in 1..=EVENTS {
        probe(journal);
        if event < EVENTS {
            assert_pending!(waiting.poll());
        }
        assert_pending!(asserting.poll());
    }
    assert_eq!(assert_ready!(waiting.poll()).unwrap().len(), count);
    assert_eq!(visited(), 2 * (BEFORE + EVENTS), "no reader visits a call again");
}

#[tokio::test(start_paused = true)]
async fn methods_that_must_not_be_called_are_watched_until_the_timeout() {
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    let never = || {
        let expectation = json!({"tracked": ["Probe"], "timeout": "10s"});
        serde_json::from_value::<Expectation>(expectation).unwrap()
    };
    let began = time::Instant::now();
    let result = assert(&admin, never()).await.unwrap();
    assert_eq!(result.status, ExpectationStatus::Complete);
    assert_eq!(began.elapsed().as_secs(), 10);

    let mut asserting = task::spawn(assert(&admin, never()));
    assert_pending!(asserting.poll());
    let request = journal.renderer.keep(&ProbeRequest {});
    let _running = journal.begin(Method::Probe.path().into(), None, request);
    let result = assert_ready!(asserting.poll()).unwrap();
    assert_eq!(result.status, ExpectationStatus::Mismatch);
    assert_eq!(result.message, "Probe in flight, but no call is expected");
}

#[tokio::test]
async fn readers_of_a_history_with_gaps_fail_and_say_so() {
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    for _ in 0..10_007 {
        probe(journal);
    }
    let expect = |after: u64| {
        let expectation = json!({"expected": [{"method": "Probe"}], "after": after});
        serde_json::from_value::<Expectation>(expectation).unwrap()
    };
    let asserted = assert(&admin, expect(0)).await;
    let refused = format!("{:?}", asserted.unwrap_err());
    assert!(
        refused.contains("FAILED_PRECONDITION") && refused.contains("calls 1 to 7 "),
        "{refused}"
    );
    let asserted = assert(&admin, expect(7)).await.unwrap();
    assert_eq!(asserted.status, ExpectationStatus::Complete);

    let query = |query: serde_json::Value| serde_json::from_value(query).unwrap();
    let found = wait(&admin, query(json!({"method": "Probe"}))).await.unwrap();
    assert_eq!(found.len(), 1, "what is there is found");
    let refused = wait(&admin, query(json!({"method": "DeleteVolume"}))).await;
    let refused = format!("{:?}", refused.unwrap_err());
    assert!(refused.contains("calls 1 to 7 "), "{refused}");

    // A reader that fell behind.
    let query = query(json!({"method": "Probe", "count": 20_000, "after": 10_007}));
    let mut waiting = task::spawn(wait(&admin, query));
    assert_pending!(waiting.poll());
    for _ in 0..10_001 {
        probe(journal);
    }
    let refused = format!("{:?}", assert_ready!(waiting.poll()).unwrap_err());
    assert!(refused.contains("calls 10008 to 10008 "), "{refused}");

    journal.clear();
    probe(journal);
    let asserted = assert(&admin, expect(0)).await.unwrap();
    assert_eq!(
        asserted.status,
        ExpectationStatus::Complete,
        "a cleared journal has no gap"
    );
}

#[tokio::test]
async fn counts_of_an_assertion_about_a_volume_ignore_other_volumes() {
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    let volume_id = "vol-2".to_owned();
    let request = DeleteVolumeRequest {
        volume_id,
        ..Default::default()
    };
    end(journal, Method::DeleteVolume, &request);
    for (volume, status) in [
        ("vol-1", ExpectationStatus::Incomplete),
        ("vol-2", ExpectationStatus::Complete),
    ] {
        let expectation = json!({"volume": volume, "counts": [{"method": "DeleteVolume", "atLeast": 1}]});
        let expectation = serde_json::from_value(expectation).unwrap();
        let asserted = assert(&admin, expectation).await.unwrap();
        assert_eq!(asserted.status, status, "{volume}");
    }
    // Such a count would never have a call.
    let contradiction =
        json!({"volume": "vol-1", "counts": [{"method": "DeleteVolume", "volume": "vol-2", "atMost": 0}]});
    let contradiction = serde_json::from_value(contradiction).unwrap();
    let refused = assert(&admin, contradiction).await.unwrap_err();
    assert!(format!("{refused:?}").contains("counts[0].volume"), "{refused:?}");
}

#[tokio::test]
async fn calls_that_the_journal_was_cleared_of_are_missing_after_a_sequence_number() {
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    for _ in 0..3 {
        probe(journal);
    }
    journal.clear();
    for (after, is_complete) in [(1, false), (0, true)] {
        let never = json!({"counts": [{"method": "Probe", "atMost": 0}], "after": after});
        let never = serde_json::from_value(never).unwrap();
        let asserted = assert(&admin, never).await;
        assert_eq!(asserted.is_ok(), is_complete, "after {after}: {asserted:?}");
    }
}

#[tokio::test]
async fn clearing_the_journal_does_not_hide_calls_from_waiting_readers() {
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    type Clear = fn(&Journal);
    let clears: [Clear; 2] = [Journal::clear, Journal::reset];
    for clear in clears {
        let before = journal.read(|memory| memory.last);
        let never = json!({"counts": [{"method": "Probe", "atMost": 0}], "after": before, "timeout": "600s"});
        let never = serde_json::from_value(never).unwrap();
        let mut asserting = task::spawn(assert(&admin, never));
        let query = serde_json::from_value(json!({"method": "Probe", "after": before})).unwrap();
        let mut waiting = task::spawn(wait(&admin, query));
        assert_pending!(asserting.poll());
        assert_pending!(waiting.poll());
        probe(journal);
        clear(journal);
        let gap = format!("calls {} to {} ", before + 1, before + 1);
        let asserted = format!("{:?}", assert_ready!(asserting.poll()));
        let waited = format!("{:?}", assert_ready!(waiting.poll()));
        assert!(
            asserted.contains(&gap) && waited.contains(&gap),
            "{asserted} {waited}"
        );
    }
}

#[tokio::test]
async fn unknown_method_in_a_filter_is_refused() {
    let admin = mk_admin();
    for (method, is_known) in [
        ("Foo", false),
        ("/csi.v1.Node/Foo", false),
        ("/vendor.v1.Copy/Start", true),
    ] {
        let query = serde_json::from_value(json!({"method": method})).unwrap();
        let listed = list(&admin, query).await;
        assert_eq!(listed.is_ok(), is_known, "{method}");
        let query = serde_json::from_value(json!({"method": method, "timeout": "0s"})).unwrap();
        let refused = format!("{:?}", wait(&admin, query).await.unwrap_err());
        assert_eq!(
            refused.contains("unknown method"),
            !is_known,
            "{method}: {refused}"
        );
    }
}

async fn asserted(admin: &Admin, expectation: serde_json::Value) -> Result<ExpectationStatus, String> {
    let expectation = serde_json::from_value(expectation).unwrap();
    let asserted = assert(admin, expectation).await;
    asserted
        .map(|reply| reply.status)
        .map_err(|refused| format!("{refused:?}"))
}

#[tokio::test]
async fn upper_bounds_count_calls_in_flight() {
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    let request = journal.renderer.keep(&ProbeRequest {});
    let _running = journal.begin(Method::Probe.path().into(), None, request);
    // (bounds, status)
    let table = [
        (json!({"atMost": 0}), ExpectationStatus::Mismatch),
        (json!({"atMost": 1}), ExpectationStatus::Complete),
        (json!({"atLeast": 1, "atMost": 1}), ExpectationStatus::Incomplete),
        // Its code is not known yet.
        (json!({"atMost": 0, "code": "OK"}), ExpectationStatus::Complete),
    ];
    for (mut count, status) in table {
        count["method"] = json!("Probe");
        let expectation = json!({"counts": [count.clone()]});
        assert_eq!(asserted(&admin, expectation).await, Ok(status), "{count}");
    }
    probe(journal);
    let once = json!({"counts": [{"method": "Probe", "atLeast": 1, "atMost": 1}]});
    assert_eq!(asserted(&admin, once).await, Ok(ExpectationStatus::Mismatch));
}

#[tokio::test]
async fn conditions_that_no_call_can_meet_are_refused() {
    let admin = mk_admin();
    // (count, a part of the error)
    let table = [
        (
            json!({"method": "CreateVolume", "node": "node-0"}),
            "counts[0].node",
        ),
        (
            json!({"method": "NodeGetInfo", "volume": "vol-0"}),
            "counts[0].volume",
        ),
        (
            json!({"method": "CreateVolume", "request": {"secrets.user": "admin"}}),
            "is a secret",
        ),
        (
            json!({"method": "ControllerPublishVolume",
                "request": {"volume_capability.access_mode.mode": "SINGLE_WRITER"}}),
            "SINGLE_NODE_WRITER",
        ),
        (
            json!({"method": "ControllerPublishVolume", "request": {"readonly": "no"}}),
            "true or false",
        ),
        (
            json!({"method": "ControllerPublishVolume", "request": {"volume_capability": "x"}}),
            "access_mode",
        ),
        (
            json!({"method": "CreateVolume", "request": {"volume_capabilities": "x"}}),
            "volume_capabilities.*",
        ),
        (
            json!({"method": "CreateVolume", "request": {"capacity_range.required_bytes": "1Gi"}}),
            "a number",
        ),
    ];
    for (mut count, part) in table {
        count["atMost"] = json!(0);
        let refused = asserted(&admin, json!({"counts": [count.clone()]}))
            .await
            .unwrap_err();
        assert!(refused.contains(part), "{count}: {refused}");
    }
}

#[tokio::test]
async fn conditions_match_fields_at_their_default() {
    let admin = mk_admin();
    let request = ControllerPublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        ..Default::default()
    };
    end(
        admin.journal().unwrap(),
        Method::ControllerPublishVolume,
        &request,
    );
    let writable = json!({"counts": [
        {"method": "ControllerPublishVolume", "request": {"readonly": false}, "atMost": 0}]});
    assert_eq!(asserted(&admin, writable).await, Ok(ExpectationStatus::Mismatch));
}

#[tokio::test]
async fn assertion_that_always_holds_is_refused() {
    let admin = mk_admin();
    for (nothing, part) in [
        (json!({}), "nothing is asserted"),
        (json!({"expected": [], "tracked": []}), "nothing is asserted"),
        (json!({"counts": [{"method": "Probe"}]}), "give atLeast or atMost"),
        (
            json!({"counts": [{"method": "Probe", "atLeast": 2, "atMost": 1}]}),
            "must not be below",
        ),
    ] {
        let refused = asserted(&admin, nothing.clone()).await.unwrap_err();
        assert!(refused.contains(part), "{nothing}: {refused}");
    }
    let none = json!({"tracked": ["Probe"]});
    assert_eq!(
        asserted(&admin, none.clone()).await,
        Ok(ExpectationStatus::Complete)
    );
    probe(admin.journal().unwrap());
    assert_eq!(asserted(&admin, none).await, Ok(ExpectationStatus::Mismatch));
}

#[tokio::test]
async fn calls_of_the_node_service_have_the_node() {
    let settings = Settings {
        node_id: Some("node-7".to_owned()),
        journal_config: crate::journal::JournalConfig {
            kept: 10,
            ..Default::default()
        },
        ..Settings::default()
    };
    let (driver, _) = Driver::open(settings).unwrap();
    let asked = driver.answer(tonic::Request::new(NodeGetInfoRequest {})).await;
    asked.unwrap();
    let admin = Admin { driver, ..mk_admin() };
    for (node, status) in [
        ("node-7", ExpectationStatus::Complete),
        ("node-1", ExpectationStatus::Incomplete),
    ] {
        let expectation = json!({"counts": [{"method": "NodeGetInfo", "node": node, "atLeast": 1}]});
        assert_eq!(asserted(&admin, expectation).await, Ok(status), "{node}");
    }
}

/// Otherwise an empty page would say that there were no such calls.
#[tokio::test]
async fn list_without_calls_is_refused_if_some_were_dropped() {
    let admin = mk_admin();
    let journal = admin.journal().unwrap();
    for _ in 0..10_001 {
        probe(journal);
    }
    for (code, after, is_listed) in [("!OK", 0, false), ("!OK", 1, true), ("OK", 0, true)] {
        let query = serde_json::from_value(json!({"code": code, "after": after})).unwrap();
        let listed = list(&admin, query).await;
        assert_eq!(listed.is_ok(), is_listed, "{code} after {after}");
    }
}
