//! Values as Go's `%v` prints them, which some error texts do.

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
