//! Traces: one for an attach and one for a detach, with a span for each attempt, and each request to the API
//! server and each call of the driver as a span below that, sent by OTLP to `--otlp-endpoint`.
//!
//! A trace's id is the VolumeAttachment's UID, so the object's traces can be found by it, and the next process
//! continues the same trace. Repairs and volumes' finalizers have a trace for each attempt; all of one object are
//! joined by the attribute `uid`. What is logged during an attempt becomes an event of its span. The driver gets
//! the context of its call in the header `traceparent` (W3C Trace Context).
//!
//! Invariants: nothing waits for a trace: finished spans go into a bounded queue and are dropped, and counted, when
//! it is full or the collector is away. A span holds what the log may hold, and nothing else. Without an endpoint
//! no span is recorded at all. See docs/adr/0019-trace-export.md.

mod export;
mod id;

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Metadata, Span, field};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::Registry;

pub use export::{Endpoint, EndpointError, ExportError, Exporter};
pub(crate) use id::Id;
use id::UidTracer;

/// Records spans.
pub type TraceLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The target of spans that only traces want.
pub(crate) const TARGET: &str = "csi_attacher::request";

/// Records spans, and sends them to `endpoint`. Must be called in a runtime.
///
/// # Errors
///
/// The settings cannot be used. A collector that cannot be reached is no error.
pub fn to(endpoint: &Endpoint) -> Result<(TraceLayer, Exporter), ExportError> {
    let exporter = Exporter::new(endpoint)?;
    Ok((layer(exporter.provider()), exporter))
}

/// A layer that records the spans that traces want.
fn layer(provider: &SdkTracerProvider) -> TraceLayer {
    OpenTelemetryLayer::new(UidTracer(provider.tracer("csi-attacher")))
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        .with_error_events_to_exceptions(false)
        .with_error_events_to_status(false)
        .with_error_fields_to_exceptions(false)
        .with_error_records_to_exceptions(false)
        .with_filter(FilterFn::new(wants).with_max_level_hint(LevelFilter::DEBUG))
        .boxed()
}

/// The span of a request, such as `PATCH volumeattachments/status` or
/// `csi.v1.Controller/ControllerPublishVolume`. Disabled without an endpoint.
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

/// The header `traceparent` for a request that is sent in the current span; none without an endpoint.
pub(crate) fn context() -> Option<String> {
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut headers);
    headers.remove("traceparent")
}

/// Whether this place in the code says anything that belongs in a trace.
fn wants(place: &Metadata<'_>) -> bool {
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

#[cfg(test)]
mod tests;
