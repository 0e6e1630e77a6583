//! Traces, exported with OTLP to `--otlp-endpoint`: one per attach and one per detach, with a span for each attempt, each
//! request to the API server and each call to the driver.
//!
//! The trace id is the VolumeAttachment's UID, so the next process continues the same trace. Repairs and PersistentVolume
//! finalizers have a trace per attempt, with the attribute `uid`. Log lines of an attempt become events of its span. The
//! driver gets the context of its call in the header `traceparent` (W3C Trace Context).
//!
//! Invariants: no work waits for the export: finished spans are queued, and are dropped and counted if the queue is full or
//! the collector is unavailable. A span contains only what the log may contain. Without an endpoint no span is recorded. See
//! docs/adr/0019-trace-export.md.

mod export;
mod id;

use std::collections::HashMap;

use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Instrument as _, Level, Metadata, Span, field};
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt as _};
use tracing_subscriber::filter::{FilterFn, LevelFilter};
use tracing_subscriber::layer::Layer;
use tracing_subscriber::registry::Registry;

pub use export::{Endpoint, ExportError, Exporter};
pub(crate) use id::Id;
use id::UidTracer;

/// The layer that records spans.
pub type TraceLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The target of spans that the log ignores.
pub(crate) const TARGET: &str = "csi_attacher::request";

/// Records spans and exports them to `endpoint`. Must be called in a runtime.
///
/// # Errors
///
/// If the settings are invalid. An unreachable collector is no error.
pub fn to(endpoint: &Endpoint) -> Result<(TraceLayer, Exporter), ExportError> {
    let exporter = Exporter::new(endpoint)?;
    Ok((layer(exporter.provider()), exporter))
}

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
        .with_filter(FilterFn::new(is_traced).with_max_level_hint(LevelFilter::DEBUG))
        .boxed()
}

/// Executes a request in a span of its own, such as `PATCH volumeattachments/status` or
/// `csi.v1.Controller/ControllerPublishVolume`, which gets the error and its code. Without an endpoint the span is disabled.
pub(crate) async fn request<T, E: std::fmt::Display>(
    name: &str,
    request: impl Future<Output = Result<T, E>>,
    code: impl FnOnce(&E) -> i64,
) -> Result<T, E> {
    let span = tracing::info_span!(
        target: TARGET,
        "request",
        { OTEL_NAME } = name,
        { OTEL_KIND } = KIND_CLIENT,
        { CODE } = field::Empty,
        { FAILED } = field::Empty,
    );
    let result = request.instrument(span.clone()).await;
    if let Err(error) = &result
        && !span.is_disabled()
    {
        span.record(CODE, code(error));
        span.record(FAILED, field::display(error));
    }
    result
}

/// The header `traceparent` of the current request; none without an endpoint.
pub(crate) fn context() -> Option<String> {
    // `span_enabled!` would leave its result behind for the next span, which the log would then lack.
    if Span::current().metadata()?.target() != TARGET {
        return None;
    }
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut headers);
    headers.remove("traceparent")
}

/// Whether traces contain spans or events of this callsite.
fn is_traced(callsite: &Metadata<'_>) -> bool {
    let most = if callsite.is_span() {
        Level::INFO
    } else {
        Level::DEBUG
    };
    callsite.target().starts_with("csi_attacher") && *callsite.level() <= most
}

/// Prefix of fields that only traces contain, without the prefix. Some are special fields of `tracing-opentelemetry`.
pub(crate) const ONLY: &str = "otel.";
const OTEL_NAME: &str = "otel.name";
const OTEL_KIND: &str = "otel.kind";
const KIND_CLIENT: &str = "client";
const CODE: &str = "code";
/// The error of a failed span.
pub(crate) const FAILED: &str = "otel.status_description";
/// Trace id of a root span, in hexadecimal digits.
const TRACE_ID: &str = "otel.trace_id";

#[cfg(test)]
mod tests;
