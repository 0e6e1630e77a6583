//! Texts that Go's libraries produce: values like `%v`, and errors of its decoders of JSON, base64 and times.

use serde_json::{Map, Value};

/// The kind of a JSON value, as errors of Go's decoder name it.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Parses JSON, with the error texts of Go's decoder.
pub(crate) fn parse_json(text: &[u8]) -> Result<Value, String> {
    serde_json::from_slice(text).map_err(|error| {
        if text.is_empty() || error.is_eof() {
            return "unexpected end of JSON input".to_owned();
        }
        let at = error.column().saturating_sub(1);
        let found = text.get(at).map_or(' ', |byte| char::from(*byte));
        let why = error.to_string();
        let in_object =
            why.starts_with("key must be a string") || (why.starts_with("trailing comma") && found == '}');
        let expected = if in_object { "object key string" } else { "value" };
        format!("invalid character '{found}' looking for beginning of {expected}")
    })
}

/// The error text of Go's decoder for a value that a Go type cannot hold.
pub(crate) fn cannot_unmarshal(value: &Value, ty: &str) -> String {
    format!(
        "json: cannot unmarshal {} into Go value of type {ty}",
        kind(value)
    )
}

/// The error text of Go's decoder for a document that is not a JSON object.
pub(crate) fn no_struct(document: &Value) -> String {
    let ty = "struct { APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }";
    cannot_unmarshal(document, ty)
}

/// The offset in the error of Go's base64 decoder.
pub(crate) fn base64_offset(error: &base64::DecodeError, text: &str) -> usize {
    match error {
        base64::DecodeError::InvalidByte(at, _) => *at,
        base64::DecodeError::InvalidLastSymbol { offset, .. } => *offset,
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => text.len() / 4 * 4,
    }
}

/// The error of Go's `time.Parse` for an RFC 3339 time with this fraction of a second.
pub(crate) fn time_error(text: &str, fraction: &str) -> Option<String> {
    let layout = [
        ("2006", "", 0, 9999),
        ("-", "", 0, 0),
        ("01", "month", 1, 12),
        ("-", "", 0, 0),
        ("02", "day", 1, 31),
        ("T", "", 0, 0),
        ("15", "hour", 0, 23),
        (":", "", 0, 0),
        ("04", "minute", 0, 59),
        (":", "", 0, 0),
        ("05", "second", 0, 59),
    ];
    let mut rest = text;
    for (element, range, least, most) in layout {
        let cannot = || Some(format!(": cannot parse {rest:?} as {element:?}"));
        let Some((given, after)) = rest.split_at_checked(element.len()) else {
            return cannot();
        };
        if element.len() == 1 {
            if given != element {
                return cannot();
            }
        } else {
            let number = given
                .bytes()
                .all(|byte| byte.is_ascii_digit())
                .then(|| given.parse().ok());
            let Some(number) = number.flatten() else {
                return cannot();
            };
            if !(least..=most).contains(&number) {
                return Some(format!(": {range} out of range"));
            }
        }
        rest = after;
    }
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    if fraction.is_empty() {
        // A fraction that the layout does not have is accepted.
        if let Some(after) = rest.strip_prefix('.').filter(|after| digits(after) > 0) {
            rest = &after[digits(after)..];
        }
    } else if rest.starts_with('.') && digits(&rest[1..]) >= fraction.len() - 1 {
        rest = &rest[fraction.len()..];
    } else {
        return Some(format!(": cannot parse {rest:?} as {fraction:?}"));
    }
    let zone = match rest.as_bytes() {
        [b'Z', ..] => 1,
        [b'+' | b'-', h1, h2, b':', m1, m2, ..]
            if [h1, h2, m1, m2].iter().all(|byte| byte.is_ascii_digit()) =>
        {
            6
        }
        _ => return Some(format!(": cannot parse {rest:?} as \"Z07:00\"")),
    };
    let extra = &rest[zone..];
    (!extra.is_empty()).then(|| format!(": extra text: {extra:?}"))
}

/// A value.
pub(crate) fn value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::Bool(value) => value.to_string(),
        Value::Number(value) => value.to_string(),
        Value::String(value) => value.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(self::value).collect();
            format!("[{}]", items.join(" "))
        }
        Value::Object(fields) => map(fields),
    }
}

/// A map; Go sorts its keys.
pub(crate) fn map(fields: &Map<String, Value>) -> String {
    let mut fields: Vec<String> = fields
        .iter()
        .map(|(name, item)| format!("{name}:{}", value(item)))
        .collect();
    fields.sort_unstable();
    format!("map[{}]", fields.join(" "))
}
