use std::collections::BTreeMap;

use tracing_subscriber::layer::SubscriberExt as _;

use super::wire::Value;
use super::*;

/// What is traced in `act`, with room for `room` spans.
fn traced(room: usize, act: impl FnOnce()) -> (Vec<wire::Span>, u64) {
    let (spans_tx, mut spans) = mpsc::channel(room);
    let queue = Queue {
        spans_tx,
        dropped: Arc::default(),
    };
    let dropped = queue.dropped.clone();
    let subscriber = Registry::default().with(TraceLayer::new(queue));
    tracing::subscriber::with_default(subscriber, act);
    let spans = std::iter::from_fn(|| spans.try_recv().ok()).collect();
    (spans, dropped.load(Ordering::Relaxed))
}

fn attributes(list: &[wire::KeyValue]) -> BTreeMap<&str, Value> {
    list.iter()
        .map(|pair| (pair.key.as_str(), pair.value.clone().unwrap().value.unwrap()))
        .collect()
}

fn text(value: &str) -> Value {
    Value::Text(value.to_owned())
}

#[test]
fn an_attempt_is_a_trace_with_its_requests_below_it() {
    let mut header = None;
    let (spans, dropped) = traced(10, || {
        let attach = tracing::info_span!(
            "attach", va = "va", node = %"n", otel.uid = "u", otel.status_description = field::Empty
        );
        let _attach = attach.enter();
        let call = request(format_args!("{}/{}", "Controller", "Publish"));
        {
            let _call = call.enter();
            header = context();
            tracing::debug!(times = 3, "tried again");
            tracing::trace!("nobody wants to know");
        }
        ended(&call, &Err::<(), _>("no room"), |_| 8);
        drop(call);
        attach.record(FAILED, "cannot attach: no room");
    });
    assert_eq!(dropped, 0);
    let [call, attach] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!((attach.name.as_str(), attach.kind), ("attach", wire::INTERNAL));
    assert_eq!((attach.trace_id.len(), attach.span_id.len()), (16, 8));
    assert!(attach.parent_span_id.is_empty());
    assert_eq!(
        attributes(&attach.attributes),
        BTreeMap::from([("va", text("va")), ("node", text("n")), ("uid", text("u"))])
    );
    let status = attach.status.clone().unwrap();
    assert_eq!(
        (status.code, &*status.message),
        (wire::FAILED, "cannot attach: no room")
    );
    assert!(attach.start_time_unix_nano > 1_600_000_000_000_000_000);
    assert!(attach.end_time_unix_nano >= call.end_time_unix_nano);
    assert!(attach.start_time_unix_nano <= call.start_time_unix_nano);

    assert_eq!(
        (call.name.as_str(), call.kind),
        ("Controller/Publish", wire::CLIENT)
    );
    assert_eq!(call.trace_id, attach.trace_id);
    assert_eq!(call.parent_span_id, attach.span_id);
    assert_ne!(call.span_id, attach.span_id);
    assert_eq!(
        attributes(&call.attributes),
        BTreeMap::from([("code", Value::Int(8))])
    );
    assert_eq!(call.status.clone().unwrap().message, "no room");
    let [event] = &call.events[..] else {
        panic!("{call:?}")
    };
    assert_eq!(event.name, "tried again");
    assert_eq!(
        attributes(&event.attributes),
        BTreeMap::from([("times", Value::Int(3))])
    );

    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let expected = format!("00-{}-{}-01", hex(&call.trace_id), hex(&call.span_id));
    assert_eq!(header, Some(expected));
}

#[test]
fn attempts_of_one_attach_are_one_trace_and_the_detach_is_another() {
    let uid = Uid::from("0b3bd1c0-6a39-4d6c-a5e4-0fd1c5a0e2f1");
    let attempt = |wanted| {
        let id = Id { uid: &uid, wanted };
        let _attempt = tracing::info_span!("attempt", otel.trace_id = %id, va = "va").entered();
        drop(request("PATCH volumeattachments"));
    };
    let (spans, _) = traced(10, || {
        for wanted in [Wanted::Attach, Wanted::Attach, Wanted::Detach] {
            attempt(wanted);
        }
    });
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let traces: Vec<String> = spans.iter().map(|span| hex(&span.trace_id)).collect();
    let [attach, detach] = [
        "0b3bd1c06a394d6ca5e40fd1c5a0e2f1",
        "0b3bd1c06a394d6ca5e40fd1c5a0e2f0",
    ];
    assert_eq!(traces, [attach, attach, attach, attach, detach, detach]);
    assert!(spans[0].parent_span_id == spans[1].span_id && spans[1].parent_span_id.is_empty());
    assert_eq!(
        attributes(&spans[1].attributes),
        BTreeMap::from([("va", text("va"))])
    );
}

#[test]
fn what_has_no_trace_of_its_own_gets_one_by_chance() {
    let (spans, _) = traced(10, || {
        drop(tracing::info_span!("release"));
        for uid in ["u", "", "0b3bd1c0", "00000000-0000-0000-0000-000000000000"] {
            let (uid, wanted) = (&Uid::from(uid), Wanted::Attach);
            drop(tracing::info_span!("attach", otel.trace_id = %Id { uid, wanted }));
        }
    });
    let traces: std::collections::BTreeSet<_> = spans.iter().map(|span| &span.trace_id).collect();
    assert_eq!((traces.len(), spans.len()), (5, 5));
    assert!(
        traces
            .iter()
            .all(|id| id.len() == 16 && id.iter().any(|byte| *byte != 0))
    );
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let (spans, dropped) = traced(2, || {
        for _ in 0..5 {
            drop(tracing::info_span!("attach"));
        }
    });
    assert_eq!((spans.len(), dropped), (2, 3));
}

#[test]
fn a_span_has_no_end_of_events_and_texts() {
    let (spans, _) = traced(1, || {
        let span = tracing::info_span!("attach", long = "é".repeat(2000));
        let _span = span.enter();
        for _ in 0..100 {
            tracing::info!("again");
        }
    });
    assert_eq!((spans[0].events.len(), spans[0].dropped_events_count), (32, 68));
    assert_eq!(attributes(&spans[0].attributes)["long"], text(&"é".repeat(512)));
}

#[test]
fn without_a_collector_there_is_no_context() {
    assert_eq!(context(), None);
    tracing::subscriber::with_default(Registry::default(), || {
        let _span = request("x").entered();
        assert_eq!(context(), None);
    });
}

#[test]
fn only_our_own_changes_of_state_are_traced() {
    let (spans, _) = traced(10, || {
        drop(tracing::debug_span!("detail"));
        drop(tracing::info_span!(target: "h2::client", "connection"));
    });
    assert_eq!(spans, []);
}
