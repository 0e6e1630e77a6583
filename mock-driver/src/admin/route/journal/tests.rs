use csi_proto::Secrets;
use csi_proto::v1::{DeleteVolumeRequest, ProbeRequest};
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
    let outcome = Outcome {
        code: Code::Ok,
        message: String::new(),
    };
    record.end(outcome, None);
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
