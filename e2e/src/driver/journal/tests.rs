use std::io::Write;

use super::*;

fn line(text: &str) -> Line {
    serde_json::from_str(text).expect("a journal line of the test")
}

fn begin(call: u64) -> Line {
    line(&format!(
        r#"{{"event":"begin","call":{call},"method":"/csi.v1.Controller/ControllerPublishVolume","start":"2026-01-01T00:00:00.000000Z",
            "request":{{"volume_id":"vol-0","node_id":"node-1","secrets":{{"password":"hash:1"}}}}}}"#
    ))
}

fn end(call: u64, code: &str, fault: Option<&str>) -> Line {
    let fault = fault
        .map(|rule| format!(r#""fault":"{rule}","#))
        .unwrap_or_default();
    line(&format!(
        r#"{{"event":"end","call":{call},"method":"/csi.v1.Controller/ControllerPublishVolume","start":"2026-01-01T00:00:00.000000Z",
            "end":"2026-01-01T00:00:01.000000Z","code":"{code}","message":"m",{fault}"request":{{}}}}"#
    ))
}

fn late(call: u64, code: &str) -> Line {
    line(&format!(
        r#"{{"event":"late","call":{call},"method":"/csi.v1.Controller/ControllerPublishVolume","end":"2026-01-01T00:00:02.000000Z",
            "code":"{code}","message":""}}"#
    ))
}

fn effects(lines: &[Line]) -> Vec<Effect> {
    let after_effect_rules = BTreeSet::from(["after".to_owned()]);
    calls(lines, &after_effect_rules)
        .iter()
        .map(|call| call.effect)
        .collect()
}

#[test]
fn a_call_is_put_together_from_its_lines() {
    let calls = calls(&[begin(1), end(1, "OK", None)], &BTreeSet::new());
    let [call] = &calls[..] else {
        panic!("one call, not {calls:?}")
    };
    assert_eq!(call.method, "ControllerPublishVolume");
    assert_eq!((call.volume.as_str(), call.node.as_str()), ("vol-0", "node-1"));
    assert_eq!(call.secrets, BTreeSet::from(["password".to_owned()]));
    assert!(call.succeeded());
}

#[test]
fn effects_follow_from_code_rule_and_late_end() {
    let cases = [
        ("completed", vec![begin(1), end(1, "OK", None)], Effect::Done),
        (
            "refused",
            vec![begin(1), end(1, "INTERNAL", None)],
            Effect::Nothing,
        ),
        (
            "failed before",
            vec![begin(1), end(1, "INTERNAL", Some("before"))],
            Effect::Nothing,
        ),
        (
            "failed after",
            vec![begin(1), end(1, "INTERNAL", Some("after"))],
            Effect::Done,
        ),
        ("running", vec![begin(1)], Effect::Unknown),
        (
            "client left",
            vec![begin(1), end(1, "CANCELLED", None)],
            Effect::Unknown,
        ),
        (
            "finished late",
            vec![begin(1), end(1, "CANCELLED", None), late(1, "OK")],
            Effect::Done,
        ),
        (
            "failed late",
            vec![begin(1), end(1, "CANCELLED", None), late(1, "ABORTED")],
            Effect::Nothing,
        ),
    ];
    for (case, lines, effect) in cases {
        assert_eq!(effects(&lines), [effect], "{case}");
    }
}

#[test]
fn an_effect_that_came_late_is_dated_by_its_own_line() {
    let lines = [begin(1), end(1, "CANCELLED", None), late(1, "OK")];
    let calls = calls(&lines, &BTreeSet::new());
    let by = calls[0].effect_by.expect("it had its effect").to_string();
    assert_eq!(by, "2026-01-01T00:00:02Z");
}

#[test]
fn numbers_that_begin_anew_belong_to_the_new_driver() {
    let lines = [begin(1), begin(2), begin(1), end(1, "OK", None)];
    assert_eq!(effects(&lines), [Effect::Unknown, Effect::Unknown, Effect::Done]);
}

#[tokio::test]
async fn a_wait_is_woken_by_a_written_line() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let journal = Journal::create(&dir.path().join("journal")).expect("a journal");
    let mut file = File::options()
        .append(true)
        .open(journal.path())
        .expect("the journal file");
    let writer = async {
        tokio::task::yield_now().await;
        let line = br#"{"event":"faults","time":"2026-01-01T00:00:00.000000Z","file":"faults","rules":1,"ids":["a"]}"#;
        let (half, rest) = line.split_at(60);
        file.write_all(half).expect("half a line");
        tokio::task::yield_now().await;
        file.write_all(&[rest, b"\n"].concat()).expect("the other half");
    };
    let waiter = journal.wait_for(Duration::from_secs(10), "rules", |lines| {
        Progress::of(!lines.is_empty(), || "no line".to_owned())
    });
    let (waited, ()) = tokio::join!(waiter, writer);
    waited.expect("the line is seen");
}

#[tokio::test]
async fn a_wait_that_runs_out_says_what_was_missing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let journal = Journal::create(&dir.path().join("journal")).expect("a journal");
    let error = journal
        .wait_for(Duration::from_millis(10), "a publish", |lines| {
            Progress::<()>::Pending(format!("{} lines", lines.len()))
        })
        .await
        .expect_err("nothing is ever written");
    assert_eq!(
        error.to_string(),
        "waited 10ms for a publish in the driver's journal: 0 lines"
    );
}
