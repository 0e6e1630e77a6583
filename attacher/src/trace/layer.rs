//! Records the spans of `tracing` as spans of a trace.

use std::fmt::{self, Write as _};

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

use super::wire::{self, KeyValue, Value};
use super::{FAILED, KIND_CLIENT, ONLY, OTEL_KIND, OTEL_NAME, Queue, TRACE_ID, wants};

/// Longest text that an attribute or a status may have: a status of a VolumeAttachment has no more.
const TEXT_BYTES: usize = 1024;
/// Events that a span may have; an attempt that repeats a request for ever tells enough with these.
const EVENTS: usize = 32;

/// See the module.
#[derive(Debug)]
pub struct TraceLayer {
    finished: Queue,
}

/// A span that is under way.
struct Open(wire::Span);

/// Writes fields into a span or an event.
struct Attribution<'a> {
    name: &'a mut String,
    attributes: &'a mut Vec<KeyValue>,
    kind: i32,
    failed: Option<String>,
    trace: Option<Vec<u8>>,
}

// === impl TraceLayer ===

impl TraceLayer {
    pub(super) fn new(finished: Queue) -> Self {
        Self { finished }
    }
}

impl<S> Layer<S> for TraceLayer
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| wants(span.metadata())) else {
            return;
        };
        let mut open = wire::Span {
            span_id: identity::<8>(),
            name: span.name().to_owned(),
            kind: wire::INTERNAL,
            start_time_unix_nano: now(),
            ..wire::Span::default()
        };
        open.trace_id = take(&mut open, |fields| attributes.record(fields)).unwrap_or_else(identity::<16>);
        let parent = span.parent();
        if let Some((trace, parent)) = parent.as_ref().and_then(|parent| {
            let extensions = parent.extensions();
            let Open(parent) = extensions.get()?;
            Some((parent.trace_id.clone(), parent.span_id.clone()))
        }) {
            (open.trace_id, open.parent_span_id) = (trace, parent);
        }
        span.extensions_mut().insert(Open(open));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(Open(open)) = span.extensions_mut().get_mut()
        {
            take(open, |fields| values.record(fields));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(span) = context.event_span(event).filter(|_| wants(event.metadata())) else {
            return;
        };
        let mut extensions = span.extensions_mut();
        let Some(Open(open)) = extensions.get_mut() else {
            return;
        };
        if open.events.len() >= EVENTS {
            open.dropped_events_count += 1;
            return;
        }
        let mut told = wire::Event {
            time_unix_nano: now(),
            ..wire::Event::default()
        };
        event.record(&mut Attribution {
            name: &mut told.name,
            attributes: &mut told.attributes,
            kind: wire::INTERNAL,
            failed: None,
            trace: None,
        });
        open.events.push(told);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        if let Some(span) = context.span(&id)
            && let Some(Open(mut open)) = span.extensions_mut().remove()
        {
            open.end_time_unix_nano = now();
            self.finished.push(open);
        }
    }
}

/// Where a request that is sent in this span belongs, as W3C's `traceparent` says it.
pub(super) fn context<'s, S: LookupSpan<'s>>(span: &SpanRef<'s, S>) -> Option<String> {
    let extensions = span.extensions();
    let Open(open) = extensions.get()?;
    let mut header = String::with_capacity(55);
    header.push_str("00-");
    hex(&mut header, &open.trace_id);
    header.push('-');
    hex(&mut header, &open.span_id);
    header.push_str("-01");
    Some(header)
}

fn hex(text: &mut String, bytes: &[u8]) {
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string must not fail");
    }
}

/// Random bytes, of which not all are zero: that would mean none.
fn identity<const N: usize>() -> Vec<u8> {
    let mut bytes = [0; N];
    fastrand::fill(&mut bytes);
    bytes[N - 1] |= 1;
    bytes.to_vec()
}

fn now() -> u64 {
    // Well until the year 2554.
    u64::try_from(Timestamp::now().as_nanosecond()).unwrap_or_default()
}

/// Writes fields into a span. Returns the trace that they ask for.
fn take(span: &mut wire::Span, record: impl FnOnce(&mut Attribution<'_>)) -> Option<Vec<u8>> {
    let mut fields = Attribution {
        name: &mut span.name,
        attributes: &mut span.attributes,
        kind: span.kind,
        failed: None,
        trace: None,
    };
    record(&mut fields);
    let Attribution {
        kind, failed, trace, ..
    } = fields;
    span.kind = kind;
    if let Some(message) = failed {
        span.status = Some(wire::Status {
            message,
            code: wire::FAILED,
        });
    }
    trace
}

/// The bytes of a trace's id; none if that is no such id.
fn trace_id(digits: &str) -> Option<Vec<u8>> {
    let id = u128::from_str_radix(digits, 16)
        .ok()
        .filter(|id| digits.len() == 32 && *id != 0)?;
    Some(id.to_be_bytes().to_vec())
}

// === impl Attribution ===

impl Attribution<'_> {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            (OTEL_NAME | "message", Value::Text(name)) => *self.name = name,
            (OTEL_KIND, Value::Text(kind)) if kind == KIND_CLIENT => self.kind = wire::CLIENT,
            (FAILED, Value::Text(message)) => self.failed = Some(message),
            (TRACE_ID, Value::Text(digits)) => self.trace = trace_id(&digits),
            (name, value) => {
                let name = name.strip_prefix(ONLY).unwrap_or(name);
                match self.attributes.iter_mut().find(|known| known.key == name) {
                    Some(known) => *known = KeyValue::new(name, value),
                    None => self.attributes.push(KeyValue::new(name, value)),
                }
            }
        }
    }
}

impl Visit for Attribution<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let cut = &value[..value.floor_char_boundary(TEXT_BYTES)];
        self.put(field, Value::Text(cut.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::Int(value));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match i64::try_from(value) {
            Ok(value) => self.put(field, Value::Int(value)),
            Err(_) => self.put(field, Value::Text(value.to_string())),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::Bool(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Value::Double(value));
    }
}
