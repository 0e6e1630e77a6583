use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Registry, fmt};

use super::*;

#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<u8>>>);

impl io::Write for Capture {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The log lines of `act`, at a fixed time.
fn lines(format: LogFormat, act: impl FnOnce()) -> Vec<String> {
    let capture = Capture::default();
    let klog = Klog {
        format,
        clock: || Timestamp::from_nanosecond(1_795_277_168_072_339_999).unwrap(),
    };
    let writer = capture.clone();
    let layer = fmt::layer()
        .fmt_fields(KlogFields)
        .event_format(klog)
        .with_writer(move || writer.clone());
    tracing::subscriber::with_default(Registry::default().with(layer), act);
    let text = String::from_utf8(capture.0.lock().unwrap().clone()).unwrap();
    assert!(text.ends_with('\n'));
    text.split_inclusive('\n').map(str::to_owned).collect()
}

fn some_events() {
    let _span = tracing::info_span!("attach", va = "csi-1", node = %"n1").entered();
    tracing::debug!(
        volume = "vol",
        node = "nearer",
        times = 3,
        done = true,
        "attached"
    );
    tracing::error!(error = "a \"b\"\nc\u{2028}\\", ratio = 0.5, "failed");
}

#[test]
fn text_has_the_format_of_klog() {
    let lines = lines(LogFormat::Text, some_events);
    let pid = format!("{:7}", std::process::id());
    let after_caller = |line: &str| {
        let (head, rest) = line.split_once("] ").unwrap();
        let (time, caller) = head.split_once(&pid).unwrap();
        assert!(caller.starts_with(" tests.rs:"), "{caller}");
        (time.to_owned(), rest.to_owned())
    };
    assert_eq!(
        after_caller(&lines[0]),
        (
            "I1121 16:06:08.072339 ".to_owned(),
            "\"attached\" logger=\"attach\" volume=\"vol\" node=\"nearer\" times=3 done=true va=\"csi-1\"\n"
                .to_owned()
        )
    );
    assert_eq!(
        after_caller(&lines[1]),
        (
            "E1121 16:06:08.072339 ".to_owned(),
            "\"failed\" logger=\"attach\" err=\"a \\\"b\\\"\\nc\\u2028\\\\\" ratio=0.5 va=\"csi-1\" node=\"n1\"\n"
                .to_owned()
        )
    );
}

#[test]
fn json_has_one_object_per_line() {
    let lines = lines(LogFormat::Json, some_events);
    let objects: Vec<Json> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines[0].starts_with("{\"ts\":1795277168072.339,\"caller\":\"klog/tests.rs:"));
    let without_caller = |object: &Json| {
        let mut object = object.clone();
        object.as_object_mut().unwrap().remove("caller").unwrap();
        object
    };
    assert_eq!(
        without_caller(&objects[0]),
        json!({
            "ts": 1_795_277_168_072.339, "msg": "attached", "level": "info", "v": 2, "logger": "attach",
            "volume": "vol", "node": "nearer", "times": 3, "done": true, "va": "csi-1",
        })
    );
    assert_eq!(
        without_caller(&objects[1]),
        json!({
            "ts": 1_795_277_168_072.339, "msg": "failed", "level": "error", "logger": "attach",
            "err": "a \"b\"\nc\u{2028}\\", "ratio": 0.5, "va": "csi-1", "node": "n1",
        })
    );
}

#[test]
fn json_has_non_finite_numbers_as_strings() {
    let lines = lines(LogFormat::Json, || {
        tracing::info!(inf = f64::INFINITY, nan = f64::NAN, "odd");
    });
    let object: Json = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&object["inf"], &object["nan"]), (&json!("inf"), &json!("NaN")));
}

#[test]
fn a_span_field_recorded_later_is_shown_and_a_trace_field_is_not() {
    let lines = lines(LogFormat::Text, || {
        let span = tracing::info_span!(
            "attach",
            va = "csi-1",
            node = tracing::field::Empty,
            otel.name = "x"
        );
        span.record("node", "n=1");
        let _span = span.entered();
        tracing::info!("attached");
    });
    assert!(
        lines[0].ends_with("] \"attached\" logger=\"attach\" va=\"csi-1\" node=\"n=1\"\n"),
        "{lines:?}"
    );
}
