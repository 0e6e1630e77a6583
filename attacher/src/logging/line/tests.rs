use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};
use tracing::Subscriber;
use tracing::span::{Attributes, Id};
use tracing_subscriber::Registry;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;

use super::*;

/// Renders what is logged in `act`, at a fixed time.
fn lines(format: Format, act: impl FnOnce()) -> Vec<String> {
    struct Capture(Format, Arc<Mutex<Vec<String>>>);
    struct Kept(Fields);

    impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Capture {
        fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            context.span(id).unwrap().extensions_mut().insert(Kept(fields));
        }

        fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let at = Timestamp::from_nanosecond(1_795_277_168_072_339_999).unwrap();
            let mut line = Line::new(at, event.metadata(), fields);
            for span in context.event_scope(event).into_iter().flatten() {
                line.within(span.name(), &span.extensions().get::<Kept>().unwrap().0);
            }
            self.1.lock().unwrap().push(line.render(self.0));
        }
    }

    let lines = Arc::new(Mutex::new(Vec::new()));
    let subscriber = Registry::default().with(Capture(format, lines.clone()));
    tracing::subscriber::with_default(subscriber, act);
    let lines = lines.lock().unwrap().clone();
    for line in &lines {
        assert_eq!(line.matches('\n').count(), 1, "{line:?}");
        assert!(line.ends_with('\n'));
    }
    lines
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
fn text_is_what_klog_writes() {
    let lines = lines(Format::Text, some_events);
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
fn json_is_one_object_a_line() {
    let lines = lines(Format::Json, some_events);
    let objects: Vec<Json> = lines
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(lines[0].starts_with("{\"ts\":1795277168072.339,\"caller\":\"line/tests.rs:"));
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
fn numbers_that_json_does_not_have_are_texts() {
    let lines = lines(Format::Json, || {
        tracing::info!(inf = f64::INFINITY, nan = f64::NAN, "odd");
    });
    let object: Json = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((&object["inf"], &object["nan"]), (&json!("inf"), &json!("NaN")));
}
