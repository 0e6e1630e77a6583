//! Trace ids derived from a VolumeAttachment's UID.

use std::cell::Cell;
use std::fmt;

use opentelemetry::trace::{SpanBuilder, SpanId, TraceId, Tracer};
use opentelemetry::{Context, Key};
use opentelemetry_sdk::trace::{IdGenerator, RandomIdGenerator, SdkTracer, Span};

use super::{ONLY, TRACE_ID};
use crate::model::Uid;
use crate::plan::Operation;

/// The trace id of all attempts of an attach or a detach: the VolumeAttachment's UID, for a detach with the last bit flipped.
/// Empty if the UID is not a UUID; the trace id is random then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Id<'a> {
    pub(crate) uid: &'a Uid,
    pub(crate) operation: Operation,
}

thread_local! {
    /// The id of the next trace that starts in this thread.
    static NEXT: Cell<Option<TraceId>> = const { Cell::new(None) };
}

/// Starts root spans with the trace id in their field `otel.trace_id`. A remote parent would appear as a missing root span.
#[derive(Debug)]
pub(super) struct UidTracer(pub(super) SdkTracer);

/// Returns the id that [`UidTracer`] has set, or a random one.
#[derive(Debug, Default)]
pub(super) struct UidGenerator(RandomIdGenerator);

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
                let flipped = u128::from(self.operation == Operation::Detach);
                write!(f, "{:032x}", attach ^ flipped)
            }
            None => Ok(()),
        }
    }
}

// === impl UidTracer ===

impl Tracer for UidTracer {
    type Span = Span;

    fn build_with_context(&self, mut builder: SpanBuilder, parent: &Context) -> Span {
        if let Some(attributes) = &mut builder.attributes {
            let given = attributes.iter().position(|pair| pair.key.as_str() == TRACE_ID);
            let given = given.map(|at| attributes.swap_remove(at).value);
            let id = given.and_then(|given| TraceId::from_hex(&given.as_str()).ok());
            NEXT.set(id.filter(|id| *id != TraceId::INVALID));
            for pair in attributes {
                if let Some(name) = pair.key.as_str().strip_prefix(ONLY) {
                    pair.key = Key::from(name.to_owned());
                }
            }
        }
        let span = self.0.build_with_context(builder, parent);
        NEXT.set(None);
        span
    }
}

// === impl UidGenerator ===

impl IdGenerator for UidGenerator {
    fn new_trace_id(&self) -> TraceId {
        NEXT.take().unwrap_or_else(|| self.0.new_trace_id())
    }

    fn new_span_id(&self) -> SpanId {
        self.0.new_span_id()
    }
}
