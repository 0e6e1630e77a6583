//! klog's formats.
//!
//! Text: `I1121 16:06:07.957612       1 worker.rs:133] "attached" va="csi-1" node="n1"`; JSON:
//! `{"ts":1795277168072.339,"caller":"src/worker.rs:133","msg":"attached","v":2,"va":"csi-1"}`, without
//! `v` and with `err` for errors, plus `level`. Every value is escaped, so an event is one line.

use std::fmt::{self, Write};

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::LogFormat;
use crate::trace;

/// Formats an event with the fields of its spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Klog {
    pub(super) format: LogFormat,
    pub(super) clock: fn() -> Timestamp,
}

/// Formats the fields of a span as one line `name=value` each, so that [`Klog`] can omit those that the event repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct KlogFields;

/// Writes one line `name=value` for each field except the message.
struct FieldLines<'a> {
    lines: &'a mut dyn Write,
    message: String,
    result: fmt::Result,
}

// === impl Klog ===

impl<S> FormatEvent<S, KlogFields> for Klog
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, KlogFields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut lines = String::new();
        let mut visitor = FieldLines::new(&mut lines);
        event.record(&mut visitor);
        let message = visitor.finish()?;
        let mut logger = None;
        // From the innermost to the outermost span; inner fields win.
        for span in context.event_scope().into_iter().flatten() {
            logger = logger.or(Some(span.name()));
            if let Some(fields) = span.extensions().get::<FormattedFields<KlogFields>>() {
                lines.push_str(&fields.fields);
            }
        }
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for (name, value) in lines.lines().filter_map(|line| line.split_once('=')) {
            if !fields.iter().any(|(known, _)| *known == name) {
                fields.push((name, value));
            }
        }
        let now = (self.clock)();
        match self.format {
            LogFormat::Text => text(&mut writer, now, event.metadata(), &message, logger, &fields),
            LogFormat::Json => json(&mut writer, now, event.metadata(), &message, logger, &fields),
        }
    }
}

fn text(
    line: &mut Writer<'_>,
    now: Timestamp,
    callsite: &Metadata<'_>,
    message: &str,
    logger: Option<&str>,
    fields: &[(&str, &str)],
) -> fmt::Result {
    let severity = match *callsite.level() {
        Level::ERROR => 'E',
        Level::WARN => 'W',
        Level::INFO | Level::DEBUG | Level::TRACE => 'I',
    };
    let (now, pid) = (now.strftime("%m%d %H:%M:%S%.6f"), std::process::id());
    write!(line, "{severity}{now} {pid:7} {}] ", caller(callsite, 1))?;
    quote(line, message)?;
    if let Some(logger) = logger {
        write!(line, " logger=\"{logger}\"")?;
    }
    for (name, value) in fields {
        write!(line, " {name}={value}")?;
    }
    line.write_char('\n')
}

fn json(
    line: &mut Writer<'_>,
    now: Timestamp,
    callsite: &Metadata<'_>,
    message: &str,
    logger: Option<&str>,
    fields: &[(&str, &str)],
) -> fmt::Result {
    let (ms, ns) = (
        now.as_millisecond(),
        now.subsec_nanosecond().rem_euclid(1_000_000),
    );
    write!(line, "{{\"ts\":{ms}.{:03},\"caller\":", ns / 1000)?;
    quote(line, &caller(callsite, 2))?;
    line.write_str(",\"msg\":")?;
    quote(line, message)?;
    let level = match *callsite.level() {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO | Level::DEBUG | Level::TRACE => "info",
    };
    write!(line, ",\"level\":\"{level}\"")?;
    if *callsite.level() != Level::ERROR
        && let Some(v) = super::levels::verbosity(callsite.target(), callsite.level())
    {
        write!(line, ",\"v\":{v}")?;
    }
    if let Some(logger) = logger {
        write!(line, ",\"logger\":\"{logger}\"")?;
    }
    for (name, value) in fields {
        write!(line, ",\"{name}\":{value}")?;
    }
    line.write_str("}\n")
}

/// File and line, with the last `parts` parts of the path.
fn caller(callsite: &Metadata<'_>, parts: usize) -> String {
    let file = callsite.file().unwrap_or("unknown");
    let start = file
        .rmatch_indices('/')
        .nth(parts - 1)
        .map_or(0, |(at, _)| at + 1);
    format!("{}:{}", &file[start..], callsite.line().unwrap_or_default())
}

// === impl KlogFields ===

impl<'w> FormatFields<'w> for KlogFields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut visitor = FieldLines::new(&mut writer);
        fields.record(&mut visitor);
        visitor.finish().map(drop)
    }

    fn add_fields(
        &self,
        current: &'w mut FormattedFields<Self>,
        fields: &tracing::span::Record<'_>,
    ) -> fmt::Result {
        self.format_fields(current.as_writer(), fields)
    }
}

// === impl FieldLines ===

impl<'a> FieldLines<'a> {
    fn new(lines: &'a mut dyn Write) -> Self {
        Self {
            lines,
            message: String::new(),
            result: Ok(()),
        }
    }

    fn finish(self) -> Result<String, fmt::Error> {
        self.result.map(|()| self.message)
    }

    /// A number or a boolean, unquoted in both formats.
    fn put_plain(&mut self, field: &Field, value: impl fmt::Display) {
        if let Some(name) = name(field) {
            self.result = self.result.and_then(|()| writeln!(self.lines, "{name}={value}"));
        }
    }

    fn put_text(&mut self, field: &Field, value: &str) {
        let Some(name) = name(field) else { return };
        let mut put = || {
            write!(self.lines, "{name}=")?;
            quote(self.lines, value)?;
            self.lines.write_char('\n')
        };
        self.result = self.result.and_then(|()| put());
    }
}

/// The name of a field in the log; none for fields of traces.
fn name(field: &Field) -> Option<&'static str> {
    match field.name() {
        // klog's name.
        "error" => Some("err"),
        name if name.starts_with(trace::ONLY) => None,
        name => Some(name),
    }
}

impl Visit for FieldLines<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else if name(field).is_some() {
            self.put_text(field, &format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            value.clone_into(&mut self.message);
        } else {
            self.put_text(field, value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put_plain(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put_plain(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put_plain(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has neither infinities nor NaN.
        if value.is_finite() {
            self.put_plain(field, value);
        } else {
            self.put_text(field, &value.to_string());
        }
    }
}

/// A JSON string, which is also a valid Go %q.
fn quote(out: &mut (impl Write + ?Sized), text: &str) -> fmt::Result {
    out.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' => out.write_str("\\\"")?,
            '\\' => out.write_str("\\\\")?,
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            // Some readers treat line and paragraph separators as line ends.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                write!(out, "\\u{:04x}", u32::from(c))?;
            }
            c => out.write_char(c)?,
        }
    }
    out.write_char('"')
}

#[cfg(test)]
mod tests;
