//! What the log takes from `tracing`: events, and the fields of the spans around them.

use std::io::{self, Write as _};

use jiff::Timestamp;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use super::levels::Levels;
use super::line::{Fields, Format, Line};
use crate::trace;

/// Who wants to hear of what. Asked once for each place in the code, so that what nobody wants costs
/// next to nothing.
#[derive(Clone, Debug)]
pub(super) struct Interests {
    pub(super) logged: Levels,
    pub(super) traced: bool,
}

/// Writes the log.
#[derive(Debug)]
pub(super) struct LogLayer {
    levels: Levels,
    format: Format,
    /// Errors to standard error and the rest to standard output; or all to standard error.
    split: bool,
}

/// The fields of a span, as they are shown with each event in it.
struct SpanFields(Fields);

// === impl Interests ===

impl<S: Subscriber> Layer<S> for Interests {
    fn register_callsite(&self, place: &'static Metadata<'static>) -> Interest {
        if self.wanted(place) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, place: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wanted(place)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let logged = self.logged.highest();
        Some(if self.traced {
            logged.max(LevelFilter::DEBUG)
        } else {
            logged
        })
    }
}

impl Interests {
    fn wanted(&self, place: &Metadata<'_>) -> bool {
        (self.logged.log(place) && place.target() != trace::TARGET) || (self.traced && trace::wants(place))
    }
}

// === impl LogLayer ===

impl LogLayer {
    pub(super) fn new(levels: Levels, format: Format, split: bool) -> Self {
        Self {
            levels,
            format,
            split,
        }
    }
}

impl<S> Layer<S> for LogLayer
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| is_logged(span.metadata())) else {
            return;
        };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert(SpanFields(fields));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(SpanFields(fields)) = span.extensions_mut().get_mut()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let place = event.metadata();
        if !self.levels.log(place) {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let mut line = Line::new(Timestamp::now(), place, fields);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(SpanFields(fields)) = span.extensions().get() {
                line.within(span.name(), fields);
            }
        }
        let text = line.render(self.format);
        // There is nobody to tell that the log cannot be written.
        let _written = if self.split && *place.level() != Level::ERROR {
            io::stdout().lock().write_all(text.as_bytes())
        } else {
            io::stderr().lock().write_all(text.as_bytes())
        };
    }
}

/// Whether a span's fields belong in the log, and not only in a trace.
fn is_logged(place: &Metadata<'_>) -> bool {
    place.target() != trace::TARGET && super::levels::level(place.target(), place.level()) == Some(0)
}
