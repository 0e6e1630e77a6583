//! `action.response`: the whole reply of a call, without the array. Its texts may use fields of the request:
//! `{{request.volume_id}}`, and `{{"{{"}}` is a literal. A text that is one template takes the field's value, whatever its type.

use std::borrow::Cow;

use prost::Message;
use prost_reflect::{DynamicMessage, MessageDescriptor};
use serde_json::Value;

use super::call_info::CallInfo;
use super::field_path;
use crate::rpc::method::Method;

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
        let mut checked = Ok(());
        for message in &response.messages {
            replace_texts(&mut message.clone(), &mut |text| {
                checked = checked.clone().and_then(|()| check_templates(text, &request));
                text.to_owned()
            });
        }
        checked?;
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
            let mut filled = message.clone();
            replace_texts(&mut filled, &mut |text| fill(text, request));
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
    replace_texts(value, &mut |text| text.replace("{{", r#"{{"{{"}}"#));
}

pub(crate) fn replace_texts<V: Into<Value>>(value: &mut Value, by: &mut impl FnMut(&str) -> V) {
    match value {
        Value::String(text) => *value = by(text).into(),
        Value::Array(items) => items.iter_mut().for_each(|item| replace_texts(item, by)),
        Value::Object(fields) => fields.values_mut().for_each(|field| replace_texts(field, by)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn check_templates(text: &str, request: &MessageDescriptor) -> Result<(), String> {
    let mut of_fields = templates(text)
        .into_iter()
        .filter(|(_, path)| literal(path).is_none());
    of_fields.try_for_each(|(whole, path)| {
        let path = path.strip_prefix("request.").ok_or_else(|| {
            format!("{whole}: must be a field of the request, as in {{{{request.volume_id}}}}")
        })?;
        if field_path::is_secret(path) {
            return Err(format!("{whole}: a reply must not have a secret of the request"));
        }
        let checked = field_path::check(request, &field_path::parts(path));
        checked.map(drop).map_err(|reason| format!("{whole}: {reason}"))
    })
}

/// The text with the fields of a request in place of its templates.
fn fill(text: &str, request: &Value) -> Value {
    let found = |path: &str| {
        if let Some(text) = literal(path) {
            return Some(text.into());
        }
        let path = field_path::parts(path.strip_prefix("request.").unwrap_or(path));
        let found = field_path::find(request, &path).into_iter().next();
        found.map(Cow::into_owned)
    };
    let templates = templates(text);
    if let [(whole, path)] = templates[..]
        && whole == text
    {
        return found(path).unwrap_or_default();
    }
    // Fields are not searched for templates: they are the client's.
    let (mut filled, mut rest) = (String::new(), text);
    for (whole, path) in templates {
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
