//! The part of OTLP's protobuf messages that we send: `opentelemetry.proto.collector.trace.v1`.
//!
//! Field numbers are those of opentelemetry-proto 1.x, which promises never to change them.

use prost::{Message, Oneof};

/// The method that takes an [`ExportRequest`].
pub const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct ExportRequest {
    /// Spans by who made them.
    #[prost(message, repeated, tag = "1")]
    pub resource_spans: Vec<ResourceSpans>,
}

/// `ExportTraceServiceResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct ExportResponse {
    /// What was not taken.
    #[prost(message, optional, tag = "1")]
    pub partial_success: Option<PartialSuccess>,
}

/// `ExportTracePartialSuccess`.
#[derive(Clone, PartialEq, Message)]
pub struct PartialSuccess {
    /// How many spans were not taken.
    #[prost(int64, tag = "1")]
    pub rejected_spans: i64,
    /// Why.
    #[prost(string, tag = "2")]
    pub error_message: String,
}

/// `ResourceSpans`.
#[derive(Clone, PartialEq, Message)]
pub struct ResourceSpans {
    /// Who made them.
    #[prost(message, optional, tag = "1")]
    pub resource: Option<Resource>,
    /// The spans, by the part of the program.
    #[prost(message, repeated, tag = "2")]
    pub scope_spans: Vec<ScopeSpans>,
}

/// `Resource`.
#[derive(Clone, PartialEq, Message)]
pub struct Resource {
    /// What it is.
    #[prost(message, repeated, tag = "1")]
    pub attributes: Vec<KeyValue>,
}

/// `ScopeSpans`.
#[derive(Clone, PartialEq, Message)]
pub struct ScopeSpans {
    /// The part of the program.
    #[prost(message, optional, tag = "1")]
    pub scope: Option<Scope>,
    /// Its spans.
    #[prost(message, repeated, tag = "2")]
    pub spans: Vec<Span>,
}

/// `InstrumentationScope`.
#[derive(Clone, PartialEq, Message)]
pub struct Scope {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Its version.
    #[prost(string, tag = "2")]
    pub version: String,
}

/// `Span`.
#[derive(Clone, PartialEq, Message)]
pub struct Span {
    /// 16 bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub trace_id: Vec<u8>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub span_id: Vec<u8>,
    /// 8 bytes, or none for the root of a trace.
    #[prost(bytes = "vec", tag = "4")]
    pub parent_span_id: Vec<u8>,
    /// What was done.
    #[prost(string, tag = "5")]
    pub name: String,
    /// Towards whom ([`INTERNAL`], [`CLIENT`]).
    #[prost(int32, tag = "6")]
    pub kind: i32,
    /// Start, in nanoseconds since 1970.
    #[prost(fixed64, tag = "7")]
    pub start_time_unix_nano: u64,
    /// End, in nanoseconds since 1970.
    #[prost(fixed64, tag = "8")]
    pub end_time_unix_nano: u64,
    /// More about it.
    #[prost(message, repeated, tag = "9")]
    pub attributes: Vec<KeyValue>,
    /// What happened meanwhile.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Event>,
    /// How much more happened.
    #[prost(uint32, tag = "12")]
    pub dropped_events_count: u32,
    /// How it ended.
    #[prost(message, optional, tag = "15")]
    pub status: Option<Status>,
}

/// `SpanKind`: work inside the program.
pub const INTERNAL: i32 = 1;
/// `SpanKind`: a request to somebody else.
pub const CLIENT: i32 = 3;
/// `Status.StatusCode`: it failed.
pub const FAILED: i32 = 2;

/// `Span.Event`.
#[derive(Clone, PartialEq, Message)]
pub struct Event {
    /// In nanoseconds since 1970.
    #[prost(fixed64, tag = "1")]
    pub time_unix_nano: u64,
    /// What happened.
    #[prost(string, tag = "2")]
    pub name: String,
    /// More about it.
    #[prost(message, repeated, tag = "3")]
    pub attributes: Vec<KeyValue>,
}

/// `Status`.
#[derive(Clone, PartialEq, Message)]
pub struct Status {
    /// Why it failed.
    #[prost(string, tag = "2")]
    pub message: String,
    /// [`FAILED`].
    #[prost(int32, tag = "3")]
    pub code: i32,
}

/// `KeyValue`.
#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    /// The attribute.
    #[prost(string, tag = "1")]
    pub key: String,
    /// Its value.
    #[prost(message, optional, tag = "2")]
    pub value: Option<AnyValue>,
}

/// `AnyValue`, as far as we use it.
#[derive(Clone, PartialEq, Message)]
pub struct AnyValue {
    /// The value.
    #[prost(oneof = "Value", tags = "1, 2, 3, 4")]
    pub value: Option<Value>,
}

/// A value.
#[derive(Clone, PartialEq, Oneof)]
pub enum Value {
    /// Text.
    #[prost(string, tag = "1")]
    Text(String),
    /// Truth.
    #[prost(bool, tag = "2")]
    Bool(bool),
    /// A whole number.
    #[prost(int64, tag = "3")]
    Int(i64),
    /// A number.
    #[prost(double, tag = "4")]
    Double(f64),
}

// === impl KeyValue ===

impl KeyValue {
    /// An attribute.
    pub fn new(key: impl Into<String>, value: Value) -> Self {
        Self {
            key: key.into(),
            value: Some(AnyValue { value: Some(value) }),
        }
    }
}
