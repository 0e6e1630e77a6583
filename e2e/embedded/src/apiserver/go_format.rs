//! Values as Go's `%v` prints them, which some error texts do.

use serde_json::{Map, Value};

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
    let fields: Vec<String> = fields
        .iter()
        .map(|(name, item)| format!("{name}:{}", value(item)))
        .collect();
    format!("map[{}]", fields.join(" "))
}
