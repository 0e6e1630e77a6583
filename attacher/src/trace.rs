//! Traces: one for an attach and one for a detach, with a span for each attempt, and each request to the API
//! server and each call of the driver as a span below that, sent by OTLP to `--otlp-endpoint`.
//!
//! A trace's id is the VolumeAttachment's UID, so whoever has the object has its traces, and so does the process
//! after us, whose attempts go on in the same trace. Repairs and volumes' finalizers have a trace for each attempt;
//! all of one object are joined by the attribute `uid`. What is logged during an attempt becomes an event of its
//! span. The driver gets the context of its call in the header `traceparent` (W3C Trace Context).
//!
//! Invariants: nothing waits for a trace: finished spans go into a bounded queue and are dropped, and
//! counted, when it is full or the collector is away. A span holds what the log may hold, and nothing
//! else. Without an endpoint no span is recorded at all.
//! Why there is no OpenTelemetry SDK in here: docs/adr/0019-own-trace-export.md.

mod export;
mod layer;
pub mod wire;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use tracing::{Level, Metadata, Span, field};
use tracing_subscriber::Registry;
use tracing_subscriber::registry::LookupSpan as _;

use crate::decide::Wanted;
use crate::model::Uid;

pub use export::{Endpoint, EndpointError, Exporter};
pub use layer::TraceLayer;

/// The target of spans that only traces want.
pub(crate) const TARGET: &str = "csi_attacher::request";

/// The id of the trace that all attempts of an attach, or of a detach, belong to: the VolumeAttachment's UID, with
/// its last bit turned for the detach. Empty for a UID that is no UUID; chance gives an id then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Id<'a> {
    pub(crate) uid: &'a Uid,
    pub(crate) wanted: Wanted,
}

/// Finished spans that may wait for the collector: some seconds of a burst, at about 1 kB each.
const WAITING: usize = 4096;

/// A queue of finished spans that forgets what does not fit.
#[derive(Clone, Debug)]
struct Queue {
    spans_tx: mpsc::Sender<wire::Span>,
    dropped: Arc<AtomicU64>,
}

/// What records spans, and what sends them to `endpoint`.
pub fn to(endpoint: &Endpoint) -> (TraceLayer, Exporter) {
    let (spans_tx, spans) = mpsc::channel(WAITING);
    let dropped = Arc::new(AtomicU64::new(0));
    let queue = Queue {
        spans_tx,
        dropped: dropped.clone(),
    };
    (TraceLayer::new(queue), Exporter::new(endpoint, spans, dropped))
}

/// The span of a request to somebody else, such as `PATCH volumeattachments/status` or
/// `csi.v1.Controller/ControllerPublishVolume`. Nothing if nobody traces.
pub(crate) fn request(name: impl std::fmt::Display) -> Span {
    tracing::info_span!(
        target: TARGET,
        "request",
        { OTEL_NAME } = %name,
        { OTEL_KIND } = KIND_CLIENT,
        { CODE } = field::Empty,
        { FAILED } = field::Empty,
    )
}

/// Tells `span` how its request ended.
pub(crate) fn ended<T, E: std::fmt::Display>(
    span: &Span,
    result: &Result<T, E>,
    code: impl FnOnce(&E) -> i64,
) {
    if let Err(error) = result
        && !span.is_disabled()
    {
        span.record(CODE, code(error));
        span.record(FAILED, field::display(error));
    }
}

/// The header `traceparent` for a request that is sent in the current span; none if nobody traces.
pub(crate) fn context() -> Option<String> {
    Span::current()
        .with_subscriber(|(id, subscriber)| {
            let span = subscriber.downcast_ref::<Registry>()?.span(id)?;
            layer::context(&span)
        })
        .flatten()
}

/// Whether this place in the code says anything that belongs in a trace.
pub(crate) fn wants(place: &Metadata<'_>) -> bool {
    let most = if place.is_span() {
        Level::INFO
    } else {
        Level::DEBUG
    };
    place.target().starts_with("csi_attacher") && *place.level() <= most
}

/// Fields whose names begin so are for traces only, and the log leaves them out; in the trace they lose
/// the beginning. Some have a meaning of their own, the one that other tracers for `tracing` give them.
pub(crate) const ONLY: &str = "otel.";
const OTEL_NAME: &str = "otel.name";
const OTEL_KIND: &str = "otel.kind";
const KIND_CLIENT: &str = "client";
const CODE: &str = "code";
/// Why a span failed.
pub(crate) const FAILED: &str = "otel.status_description";
/// The trace of a span that has no parent, in hexadecimal digits.
const TRACE_ID: &str = "otel.trace_id";

// === impl Id ===

impl fmt::Display for Id<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.uid.0.bytes().filter(|byte| *byte != b'-');
        let value = digits.clone().try_fold(0u128, |value, digit| {
            let digit = char::from(digit).to_digit(16)?;
            Some(value << 4 | u128::from(digit))
        });
        match value.filter(|_| digits.count() == 32) {
            Some(attach) => {
                let turned = u128::from(self.wanted == Wanted::Detach);
                write!(f, "{:032x}", attach ^ turned)
            }
            None => Ok(()),
        }
    }
}

// === impl Queue ===

impl Queue {
    fn push(&self, span: wire::Span) {
        if self.spans_tx.try_send(span).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
