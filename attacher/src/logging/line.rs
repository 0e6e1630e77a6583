//! One line of the log, as klog writes it.
//!
//! Text: `I1121 16:06:07.957612       1 worker.rs:133] "attached" va="csi-1" node="n1"`; JSON:
//! `{"ts":1795277168072.339,"caller":"src/worker.rs:133","msg":"attached","v":2,"va":"csi-1"}`, without
//! `v` and with `err` for errors, plus `level`. Whatever a value holds, a line is one line.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata};

use crate::trace;

/// The form of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
}

/// The fields of an event or a span, and an event's message.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields {
    message: String,
    list: Vec<(&'static str, Value)>,
}

#[derive(Clone, Debug)]
enum Value {
    /// A number or a boolean, which both forms show as it is.
    Plain(String),
    Text(String),
}

/// A line in the making.
#[derive(Debug)]
pub(super) struct Line<'a> {
    at: Timestamp,
    place: &'a Metadata<'a>,
    fields: Fields,
    logger: Option<&'static str>,
}

// === impl Line ===

impl<'a> Line<'a> {
    pub(super) fn new(at: Timestamp, place: &'a Metadata<'a>, fields: Fields) -> Self {
        Self {
            at,
            place,
            fields,
            logger: None,
        }
    }

    /// Adds the fields of a span around the event, from the inside to the outside: what is nearer to the
    /// event counts.
    pub(super) fn within(&mut self, span: &'static str, fields: &Fields) {
        self.logger = self.logger.or(Some(span));
        for (name, value) in &fields.list {
            if !self.fields.list.iter().any(|(known, _)| known == name) {
                self.fields.list.push((*name, value.clone()));
            }
        }
    }

    pub(super) fn render(&self, format: Format) -> String {
        let mut line = String::with_capacity(256);
        let written = match format {
            Format::Text => self.text(&mut line),
            Format::Json => self.json(&mut line),
        };
        written.expect("writing to a string must not fail");
        line.push('\n');
        line
    }

    fn text(&self, line: &mut String) -> fmt::Result {
        let letter = match *self.place.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            Level::INFO | Level::DEBUG | Level::TRACE => 'I',
        };
        let at = self.at.strftime("%m%d %H:%M:%S%.6f");
        write!(line, "{letter}{at} {:7} {}] ", std::process::id(), self.caller(1))?;
        quote(line, &self.fields.message)?;
        if let Some(logger) = self.logger {
            write!(line, " logger=\"{logger}\"")?;
        }
        for (name, value) in &self.fields.list {
            write!(line, " {name}=")?;
            value.write(line)?;
        }
        Ok(())
    }

    fn json(&self, line: &mut String) -> fmt::Result {
        // Milliseconds with what is below them after the point.
        let (ms, below) = (
            self.at.as_millisecond(),
            self.at.subsec_nanosecond().rem_euclid(1_000_000),
        );
        write!(line, "{{\"ts\":{ms}.{:03},\"caller\":", below / 1000)?;
        quote(line, &self.caller(2))?;
        line.write_str(",\"msg\":")?;
        quote(line, &self.fields.message)?;
        let level = match *self.place.level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO | Level::DEBUG | Level::TRACE => "info",
        };
        write!(line, ",\"level\":\"{level}\"")?;
        if *self.place.level() != Level::ERROR
            && let Some(v) = super::levels::level(self.place.target(), self.place.level())
        {
            write!(line, ",\"v\":{v}")?;
        }
        if let Some(logger) = self.logger {
            write!(line, ",\"logger\":\"{logger}\"")?;
        }
        for (name, value) in &self.fields.list {
            write!(line, ",\"{name}\":")?;
            value.write(line)?;
        }
        line.push('}');
        Ok(())
    }

    /// File and line, with the last `parts` parts of the path.
    fn caller(&self, parts: usize) -> String {
        let file = self.place.file().unwrap_or("unknown");
        let start = file
            .rmatch_indices('/')
            .nth(parts - 1)
            .map_or(0, |(at, _)| at + 1);
        format!("{}:{}", &file[start..], self.place.line().unwrap_or_default())
    }
}

// === impl Value ===

impl Value {
    fn write(&self, line: &mut String) -> fmt::Result {
        match self {
            Self::Plain(value) => line.write_str(value),
            Self::Text(value) => quote(line, value),
        }
    }
}

// === impl Fields ===

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let name = match field.name() {
            "message" => {
                self.message = match value {
                    Value::Plain(text) | Value::Text(text) => text,
                };
                return;
            }
            // As klog calls it.
            "error" => "err",
            name if name.starts_with(trace::ONLY) => return,
            name => name,
        };
        match self.list.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.list.push((name, value)),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Value::Text(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Value::Text(value.to_owned()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, Value::Plain(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Value::Plain(value.to_string()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, Value::Plain(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has neither infinities nor NaN.
        let text = value.to_string();
        self.put(
            field,
            if value.is_finite() {
                Value::Plain(text)
            } else {
                Value::Text(text)
            },
        );
    }
}

/// A JSON string, which Go's %q can be read as, too.
fn quote(line: &mut String, text: &str) -> fmt::Result {
    line.push('"');
    for c in text.chars() {
        let escaped: Cow<'static, str> = match c {
            '"' => "\\\"".into(),
            '\\' => "\\\\".into(),
            '\n' => "\\n".into(),
            '\r' => "\\r".into(),
            '\t' => "\\t".into(),
            // Line and paragraph separator end a line for some readers.
            c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                format!("\\u{:04x}", u32::from(c)).into()
            }
            c => {
                line.push(c);
                continue;
            }
        };
        line.push_str(&escaped);
    }
    line.push('"');
    Ok(())
}

#[cfg(test)]
mod tests;
