//! `action.response`: the whole reply of a call, without the array. Its texts may use fields of the request:
//! `{{request.volume_id}}`, and `{{"{{"}}` is a literal. A text that is one template takes the field's value, whatever its type.

use std::borrow::Cow;

use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use serde_json::Value;

use super::call_info::CallInfo;
use super::field_path;
use crate::rpc::method::Method;

/// A message, or the messages of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    reply: MessageDescriptor,
    messages: Vec<Value>,
}

// === impl Response ===

impl Response {
    /// Parses the JSON of a method's reply, or a list of those of a stream.
    ///
    /// # Errors
    /// It is not such a message, or uses a field that the request does not have.
    pub(super) fn read(value: Value, method: Method) -> Result<Self, String> {
        let messages = match value {
            Value::Array(messages) if method.streams() => messages,
            Value::Object(message) => vec![message.into()],
            Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
                let name = method.name();
                return Err(format!(
                    "must be the reply of {name} as a mapping; a stream has a list of them"
                ));
            }
        };
        let response = Self {
            reply: method.reply(),
            messages,
        };
        let request = method.request();
        for message in &response.messages {
            check_templates(message, &request)?;
        }
        response.encode(&field_path::json(&DynamicMessage::new(request)))?;
        Ok(response)
    }

    /// The encoded messages for a call.
    ///
    /// # Errors
    /// A field of the request does not fit where the response uses it.
    pub(super) fn render(&self, call: &dyn CallInfo) -> Result<Vec<Vec<u8>>, String> {
        self.encode(&call.json())
    }

    fn encode(&self, request: &Value) -> Result<Vec<Vec<u8>>, String> {
        let encode = |message: &Value| {
            let filled = fill(message, request);
            let message = DynamicMessage::deserialize(self.reply.clone(), filled);
            let message = message.map_err(|error| format!("does not fit {}: {error}", self.reply.name()))?;
            Ok(message.encode_to_vec())
        };
        self.messages.iter().map(encode).collect()
    }
}

/// The templates of a text: their places, with braces, and their paths.
fn templates(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, behind)) = rest.split_once("{{") {
        let Some((path, after)) = behind.split_once("}}") else {
            break;
        };
        let start = text.len() - behind.len() - 2;
        found.push((&text[start..text.len() - after.len()], path.trim()));
        rest = after;
    }
    found
}

/// The text of a template that is no field.
fn literal(path: &str) -> Option<&str> {
    path.strip_prefix('"')?.strip_suffix('"')
}

/// The value with its texts as they are, whatever braces they have.
pub(crate) fn escape(value: &mut Value) {
    replace_texts(value, &|text| text.replace("{{", r#"{{"{{"}}"#));
}

/// Replaces all texts in a value.
pub(crate) fn replace_texts(value: &mut Value, by: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = by(text),
        Value::Array(items) => items.iter_mut().for_each(|item| replace_texts(item, by)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace_texts(field, by)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_templates(value: &Value, request: &MessageDescriptor) -> Result<(), String> {
    match value {
        Value::String(text) => templates(text).into_iter().try_for_each(|(whole, path)| {
            if literal(path).is_some() {
                return Ok(());
            }
            let path = path.strip_prefix("request.");
            let path = path.ok_or_else(|| {
                format!("{whole}: must be a field of the request, as in {{{{request.volume_id}}}}")
            })?;
            if field_path::is_secret(path) {
                return Err(format!("{whole}: a reply must not have a secret of the request"));
            }
            let checked = field_path::check(request, &field_path::parts(path));
            checked.map(drop).map_err(|reason| format!("{whole}: {reason}"))
        }),
        Value::Array(items) => items.iter().try_for_each(|item| check_templates(item, request)),
        Value::Object(fields) => fields
            .values()
            .try_for_each(|field| check_templates(field, request)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// The value with the fields of a request in place of its templates.
fn fill(value: &Value, request: &Value) -> Value {
    let found = |path: &str| {
        if let Some(text) = literal(path) {
            return Some(text.into());
        }
        let path = field_path::parts(path.strip_prefix("request.").unwrap_or(path));
        field_path::find(request, &path)
            .into_iter()
            .next()
            .map(Cow::into_owned)
    };
    match value {
        Value::String(text) => match templates(text).as_slice() {
            [] => value.clone(),
            [(whole, path)] if whole == text => found(path).unwrap_or_default(),
            several => {
                // Fields are not searched for templates: they are the client's.
                let (mut filled, mut rest) = (String::new(), text.as_str());
                for (whole, path) in several {
                    let (before, after) = rest.split_once(whole).unwrap_or((rest, ""));
                    filled.push_str(before);
                    match found(path) {
                        Some(Value::String(field)) => filled.push_str(&field),
                        field => filled.extend(field.map(|field| field.to_string())),
                    }
                    rest = after;
                }
                (filled + rest).into()
            }
        },
        Value::Array(items) => items.iter().map(|item| fill(item, request)).collect(),
        Value::Object(fields) => {
            let filled = fields
                .iter()
                .map(|(name, field)| (name.clone(), fill(field, request)));
            Value::Object(filled.collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}
