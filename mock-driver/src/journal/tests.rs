use std::time::Duration;

use csi_proto::v1::{
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ListVolumesRequest, ListVolumesResponse,
};
use prometheus::Histogram;
use tokio_test::{assert_pending, assert_ready, task};
use tonic::{Code, Status};
use wildmatch::WildMatch;

use super::*;
use crate::rpc::method;

const PUBLISH: &str = "/csi.v1.Controller/ControllerPublishVolume";
const LIST: &str = "/csi.v1.Controller/ListVolumes";

fn mk_readers(kept: usize) -> JournalConfig {
    JournalConfig {
        kept,
        ..JournalConfig::default()
    }
}

fn mk_journal(kept: usize) -> Arc<Journal> {
    Arc::new(Journal::open(None, mk_readers(kept), [7; 16], Clock::system()).unwrap())
}

fn mk_status(code: Code) -> Status {
    Status::new(code, code.description())
}

fn begin(journal: &Arc<Journal>, volume: &str, node: &str) -> CallRecord {
    let request = ControllerPublishVolumeRequest {
        volume_id: volume.into(),
        node_id: node.into(),
        ..Default::default()
    };
    journal.begin(PUBLISH.into(), None, journal.renderer.keep(&request))
}

fn publish(journal: &Arc<Journal>, volume: &str, code: Code) {
    end(journal, begin(journal, volume, "node-0"), code);
}

fn end(journal: &Journal, mut record: CallRecord, code: Code) {
    let response = ControllerPublishVolumeResponse::default();
    record.end(mk_status(code), Some(journal.renderer.keep(&response)));
}

fn volumes(journal: &Journal) -> Vec<String> {
    journal.read(|memory| {
        memory
            .after(0)
            .map(|(_, call)| call.volume().to_owned())
            .collect()
    })
}

#[test]
fn last_calls_are_kept_in_the_order_of_their_ends() {
    let journal = mk_journal(2);
    let slow = begin(&journal, "slow", "node-0");
    publish(&journal, "a", Code::Ok);
    publish(&journal, "b", Code::Ok);
    assert_eq!(volumes(&journal), ["a", "b"]);
    end(&journal, slow, Code::Ok);
    assert_eq!(volumes(&journal), ["b", "slow"]);
    journal.read(|memory| {
        let oldest = memory.after(0).next().map(|(sequence, _)| sequence);
        assert_eq!((oldest, memory.last), (Some(2), 3));
        let later: Vec<u64> = memory.after(2).map(|(sequence, _)| sequence).collect();
        assert_eq!(later, [3], "sequence numbers go on although older calls are gone");
    });
    journal.clear();
    publish(&journal, "c", Code::Ok);
    assert_eq!(volumes(&journal), ["c"]);
    assert_eq!(journal.read(|memory| memory.last), 4);
}

#[test]
fn memory_is_bounded_by_bytes_too() {
    let journal = mk_journal(1000);
    let listing = ListVolumesResponse {
        next_token: "x".repeat(1 << 20),
        ..Default::default()
    };
    for _ in 0..100 {
        let request = journal.renderer.keep(&ListVolumesRequest::default());
        let mut record = journal.begin(LIST.into(), None, request);
        record.end(mk_status(Code::Ok), Some(journal.renderer.keep(&listing)));
    }
    assert_eq!(journal.read(|memory| memory.after(0).count()), 63);
}

#[test]
fn journal_of_size_zero_keeps_nothing() {
    let journal = mk_journal(0);
    let running = begin(&journal, "a", "node-0");
    publish(&journal, "b", Code::Ok);
    journal.read(|memory| {
        assert_eq!(
            (
                memory.running().len(),
                memory.after(0).count(),
                memory.durations.len()
            ),
            (0, 0, 0)
        );
    });
    drop(running);
}

#[test]
fn calls_that_run_are_seen_with_what_holds_them_up_until_they_end() {
    let journal = mk_journal(10);
    let mut record = begin(&journal, "a", "node-1");
    record.set_fault("slow");
    journal.read(|memory| {
        let call = memory.running().next().unwrap();
        assert_eq!(
            (call.volume(), call.node(), method::short(&call.method)),
            ("a", "node-1", "ControllerPublishVolume")
        );
        assert_eq!(call.fault().as_deref(), Some("slow"));
        assert!(call.end().is_none());
    });
    drop(record);
    journal.read(|memory| {
        assert_eq!(memory.running().len(), 0);
        let (_, call) = memory.after(0).next().unwrap();
        assert_eq!(call.end().unwrap().status.code(), Code::Cancelled);
    });
}

#[test]
fn every_field_of_a_filter_filters() {
    let journal = mk_journal(10);
    publish(&journal, "vol-1", Code::Ok);
    publish(&journal, "vol-2", Code::NotFound);
    let mut record = begin(&journal, "pvc-1", "node-1");
    record.set_fault("lost-answer");
    drop(record);
    let pattern = |text: &str| Some(WildMatch::new(text));
    let with = |set: &dyn Fn(&mut Filter)| {
        let mut filter = Filter::default();
        set(&mut filter);
        filter
    };
    let table: [(&str, Filter, &[&str]); 7] = [
        ("all", Filter::default(), &["vol-1", "vol-2", "pvc-1"]),
        (
            "method",
            with(&|all| all.method = Some("ListVolumes".into())),
            &[],
        ),
        (
            "path",
            with(&|all| (all.method, all.code) = (Some(PUBLISH.into()), Some(Code::Ok))),
            &["vol-1"],
        ),
        ("code", with(&|all| all.code = Some(Code::NotFound)), &["vol-2"]),
        (
            "volume",
            with(&|all| all.volume = pattern("vol-*")),
            &["vol-1", "vol-2"],
        ),
        ("node", with(&|all| all.node = pattern("node-1")), &["pvc-1"]),
        ("fault", with(&|all| all.fault = pattern("*")), &["pvc-1"]),
    ];
    for (case, filter, expected) in table {
        let found: Vec<String> = journal.read(|memory| {
            let calls = memory.after(0).map(|(_, call)| call);
            let meant = calls.filter(|call| filter.covers(call));
            meant.map(|call| call.volume().to_owned()).collect()
        });
        assert_eq!(found, expected, "{case}");
    }
}

#[tokio::test]
async fn waiting_ends_with_the_call_that_is_waited_for() {
    let journal = mk_journal(10);
    let mut waiting = task::spawn(journal.wait(|memory| {
        let mut calls = memory.after(0);
        calls
            .find(|(_, call)| call.volume() == "b")
            .map(|(sequence, _)| sequence)
    }));
    assert_pending!(waiting.poll());
    publish(&journal, "a", Code::Ok);
    assert!(waiting.is_woken());
    assert_pending!(waiting.poll());
    publish(&journal, "b", Code::Ok);
    assert!(waiting.is_woken());
    assert_eq!(assert_ready!(waiting.poll()), 2);
}

#[tokio::test]
async fn cursor_returns_each_call_once() {
    let journal = mk_journal(3);
    publish(&journal, "before", Code::Ok);
    let mut cursor = journal.read(|memory| Cursor::after(1, memory));
    let mut seen = Vec::new();
    {
        let mut waiting = task::spawn(journal.wait(|memory| {
            seen.extend(cursor.new_calls(memory).map(|(sequence, _)| sequence));
            (seen.len() >= 4).then_some(())
        }));
        for _ in 0..4 {
            assert_pending!(waiting.poll());
            publish(&journal, "a", Code::Ok);
        }
        assert_ready!(waiting.poll());
    }
    assert_eq!(seen, [2, 3, 4, 5]);
    // Calls that were dropped from memory in between are not seen at all, and nothing is seen twice.
    for _ in 0..5 {
        publish(&journal, "b", Code::Ok);
    }
    let mut new_sequences = || {
        journal.read(|memory| {
            cursor
                .new_calls(memory)
                .map(|(sequence, _)| sequence)
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(new_sequences(), [8, 9, 10]);
    assert_eq!(new_sequences(), [0; 0]);
    journal.clear();
    assert_eq!(new_sequences(), [0; 0]);
}

#[test]
fn methods_that_are_too_many_are_counted_together() {
    let journal = mk_journal(1);
    for number in 0..3000 {
        let method = format!("/any.v1.Service/Method{number}");
        let request = journal.renderer.keep_wire(&method, Direction::Request, b"");
        drop(journal.begin(method.into(), None, request));
    }
    let durations = journal.read(|memory| memory.durations.clone());
    assert_eq!(durations.len(), 1001);
    let calls = durations.values().map(Histogram::get_sample_count);
    assert_eq!(calls.sum::<u64>(), 3000);
    let other = durations
        .iter()
        .find(|((method, _), _)| method == "other")
        .unwrap();
    assert_eq!(other.1.get_sample_count(), 2000);
}

#[tokio::test]
async fn subscribers_hear_of_begin_end_and_late_work() {
    let journal = mk_journal(10);
    publish(&journal, "before", Code::Ok);
    let mut events = journal.subscribe();
    let record = begin(&journal, "a", "node-0");
    let operation = record.operation.clone();
    drop(record);
    operation.done(mk_status(Code::Ok));
    assert!(matches!(events.recv().await, Ok(Event::Begin(call)) if call.volume() == "a"));
    assert!(matches!(events.recv().await, Ok(Event::End(call)) if call.late().is_some()));
    assert!(matches!(events.recv().await, Ok(Event::Late(_))));
}

#[test]
fn stats_count_calls_by_method_and_code() {
    let journal = mk_journal(1);
    for code in [Code::Ok, Code::NotFound, Code::Ok] {
        publish(&journal, "a", code);
    }
    let durations = journal.read(|memory| memory.durations.clone());
    let counted: Vec<_> = durations
        .iter()
        .map(|((method, code), times)| (method.as_str(), *code, times.get_sample_count()))
        .collect();
    let method = "ControllerPublishVolume";
    assert_eq!(counted, [(method, "NOT_FOUND", 1), (method, "OK", 2)]);
    for times in durations.values() {
        assert!(times.get_sample_sum() < 60.0);
    }
}

#[tokio::test(start_paused = true)]
async fn durations_do_not_follow_a_wall_clock_that_steps() {
    let journal = Journal::open(
        None,
        mk_readers(1),
        [7; 16],
        Clock::new(|| jiff::Timestamp::UNIX_EPOCH),
    );
    let journal = Arc::new(journal.unwrap());
    let record = begin(&journal, "a", "node-0");
    tokio::time::sleep(Duration::from_secs(3)).await;
    end(&journal, record, Code::Ok);
    let seconds = journal.read(|memory| {
        let times = memory.durations.values().map(Histogram::get_sample_sum);
        times.sum::<f64>()
    });
    assert!((seconds - 3.0).abs() < 1e-9, "{seconds}");
}
