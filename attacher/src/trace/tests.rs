use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use opentelemetry::trace::{SpanId, SpanKind, Status};
use opentelemetry::{KeyValue, Value};
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SimpleSpanProcessor, SpanData, SpanExporter};
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;
use crate::model::Uid;
use crate::plan::Operation;

#[derive(Clone, Debug, Default)]
struct Capture(Arc<Mutex<Vec<SpanData>>>);

impl SpanExporter for Capture {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        self.0.lock().unwrap().extend(batch);
        Ok(())
    }
}

/// The spans of `act`.
fn traced(act: impl FnOnce()) -> Vec<SpanData> {
    let capture = Capture::default();
    let provider = export::provider(SimpleSpanProcessor::new(capture.clone()));
    tracing::subscriber::with_default(Registry::default().with(layer(&provider)), act);
    std::mem::take(&mut *capture.0.lock().unwrap())
}

fn attributes(pairs: &[KeyValue]) -> BTreeMap<&str, Value> {
    pairs
        .iter()
        .map(|pair| (pair.key.as_str(), pair.value.clone()))
        .collect()
}

fn text(value: &str) -> Value {
    Value::from(value.to_owned())
}

#[test]
fn attempt_is_a_trace_with_its_requests_as_children() {
    let mut header = None;
    let spans = traced(|| {
        let attach = tracing::info_span!(
            "attach", va = "va", node = %"n", otel.uid = "u", otel.status_description = field::Empty
        );
        let _attach = attach.enter();
        let call = async {
            header = context();
            tracing::debug!(times = 3, "tried again");
            tracing::trace!("too detailed");
            Err::<(), _>("no room")
        };
        let call = request("Controller/Publish", call, |_| 8);
        assert_eq!(call.now_or_never(), Some(Err("no room")));
        attach.record(FAILED, "cannot attach: no room");
    });
    let [call, attach] = &spans[..] else {
        panic!("{spans:?}")
    };
    assert_eq!(
        (&*attach.name, &attach.span_kind),
        ("attach", &SpanKind::Internal)
    );
    assert_eq!(attach.parent_span_id, SpanId::INVALID);
    assert_eq!(
        attributes(&attach.attributes),
        BTreeMap::from([("va", text("va")), ("node", text("n")), ("uid", text("u"))])
    );
    assert_eq!(attach.status, Status::error("cannot attach: no room"));
    assert!(attach.end_time >= call.end_time && attach.start_time <= call.start_time);

    assert_eq!(
        (&*call.name, &call.span_kind),
        ("Controller/Publish", &SpanKind::Client)
    );
    assert_eq!(call.span_context.trace_id(), attach.span_context.trace_id());
    assert_eq!(call.parent_span_id, attach.span_context.span_id());
    assert_eq!(
        attributes(&call.attributes),
        BTreeMap::from([("code", Value::I64(8))])
    );
    assert_eq!(call.status, Status::error("no room"));
    let [event] = &call.events.events[..] else {
        panic!("{call:?}")
    };
    assert_eq!(event.name, "tried again");
    assert_eq!(attributes(&event.attributes)["times"], Value::I64(3));

    let (trace, span) = (call.span_context.trace_id(), call.span_context.span_id());
    assert_eq!(header, Some(format!("00-{trace}-{span}-01")));
}

#[test]
fn attempts_of_an_attach_share_a_trace_and_the_detach_has_another() {
    let uid = Uid::from("0b3bd1c0-6a39-4d6c-a5e4-0fd1c5a0e2f1");
    let attempt = |operation| {
        let id = Id { uid: &uid, operation };
        let _attempt = tracing::info_span!("attempt", otel.trace_id = %id, va = "va").entered();
        let patch = request("PATCH volumeattachments", async { Ok::<_, &str>(()) }, |_| 0);
        assert!(patch.now_or_never().is_some());
    };
    let spans = traced(|| {
        for operation in [Operation::Attach, Operation::Attach, Operation::Detach] {
            attempt(operation);
        }
    });
    let traces: Vec<String> = spans
        .iter()
        .map(|span| span.span_context.trace_id().to_string())
        .collect();
    let [attach, detach] = [
        "0b3bd1c06a394d6ca5e40fd1c5a0e2f1",
        "0b3bd1c06a394d6ca5e40fd1c5a0e2f0",
    ];
    assert_eq!(traces, [attach, attach, attach, attach, detach, detach]);
    assert_eq!(spans[0].parent_span_id, spans[1].span_context.span_id());
    assert_eq!(spans[1].parent_span_id, SpanId::INVALID, "no phantom root");
    assert_eq!(
        attributes(&spans[1].attributes),
        BTreeMap::from([("va", text("va"))])
    );
}

#[test]
fn spans_without_a_uuid_get_random_traces() {
    let spans = traced(|| {
        drop(tracing::info_span!("remove_finalizer"));
        for uid in ["u", "", "0b3bd1c0", "00000000-0000-0000-0000-000000000000"] {
            let (uid, operation) = (&Uid::from(uid), Operation::Attach);
            drop(tracing::info_span!("attach", otel.trace_id = %Id { uid, operation }));
        }
    });
    let traces: std::collections::BTreeSet<_> = spans
        .iter()
        .map(|span| span.span_context.trace_id().to_bytes())
        .collect();
    assert_eq!((traces.len(), spans.len()), (5, 5));
    assert!(!traces.contains(&[0; 16]));
}

#[test]
fn events_and_texts_of_a_span_are_bounded() {
    let mut spans = traced(|| {
        let span = tracing::info_span!("attach", long = "é".repeat(2000));
        let _span = span.enter();
        for _ in 0..100 {
            tracing::info!(error = "x".repeat(2000), "again");
        }
        span.record(FAILED, "x".repeat(2000));
    });
    let span = &mut spans[0];
    export::cut(span);
    assert_eq!((span.events.events.len(), span.events.dropped_count), (32, 68));
    assert_eq!(attributes(&span.attributes)["long"], text(&"é".repeat(512)));
    let event = attributes(&span.events.events[0].attributes);
    assert_eq!(event["error"], text(&"x".repeat(1024)));
}

#[test]
fn no_context_without_a_collector() {
    assert_eq!(context(), None);
    tracing::subscriber::with_default(Registry::default(), || {
        let call = request("x", async { Ok::<_, &str>(context()) }, |_| 0);
        assert_eq!(call.now_or_never(), Some(Ok(None)));
    });
}

#[test]
fn only_spans_of_this_crate_at_info_are_traced() {
    let spans = traced(|| {
        drop(tracing::debug_span!("detail"));
        drop(tracing::info_span!(target: "h2::client", "connection"));
    });
    assert_eq!(spans, []);
}

/// Counts the spans around each event, as the log does.
#[derive(Clone, Default)]
struct Scopes(Arc<Mutex<Vec<usize>>>);

impl<S> Layer<S> for Scopes
where
    S: tracing::Subscriber + for<'s> tracing_subscriber::registry::LookupSpan<'s>,
{
    fn on_event(&self, event: &tracing::Event<'_>, context: tracing_subscriber::layer::Context<'_, S>) {
        let scope = context.event_scope(event);
        self.0.lock().unwrap().push(scope.map_or(0, Iterator::count));
    }
}

#[test]
fn reading_the_context_does_not_hide_the_next_span_from_the_log() {
    let provider = export::provider(SimpleSpanProcessor::new(Capture::default()));
    let scopes = Scopes::default();
    let log = scopes
        .clone()
        .with_filter(FilterFn::new(|callsite| callsite.target() != TARGET));
    let subscriber = Registry::default().with(layer(&provider)).with(log);
    tracing::subscriber::with_default(subscriber, || {
        let call = async {
            assert!(context().is_some());
            // Another attach begins while the call runs.
            tracing::info_span!("attach").in_scope(|| tracing::info!("attached"));
            Ok::<_, &str>(())
        };
        assert_eq!(
            request("Controller/Publish", call, |_| 0).now_or_never(),
            Some(Ok(()))
        );
    });
    assert_eq!(*scopes.0.lock().unwrap(), [1]);
}
