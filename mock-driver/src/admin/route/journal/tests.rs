use csi_proto::v1::ProbeRequest;
use serde_json::json;
use tokio_test::{assert_pending, assert_ready, task};
use tokio_util::sync::CancellationToken;

use super::*;
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
    let request = journal.renderer.keep(&ProbeRequest {});
    let mut record = journal.begin(Method::Probe.path().into(), None, request);
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
    let mut waiting = task::spawn(wait(State(admin.clone()), Query(query)));
    let expectation = json!({
        "expected": [{"method": "Probe", "code": "OK"}, {"method": "DeleteVolume", "code": "OK"}],
        "timeout": "600s",
    });
    let expectation = serde_json::from_value(expectation).unwrap();
    let mut asserting = task::spawn(assert(State(admin.clone()), Json(expectation)));
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
    assert_eq!(assert_ready!(waiting.poll()).unwrap().0.len(), count);
    assert_eq!(visited(), 2 * (BEFORE + EVENTS), "no reader visits a call again");
}
