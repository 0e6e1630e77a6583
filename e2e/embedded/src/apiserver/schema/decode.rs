//! Decodes a JSON object into the fields of a struct: drops and reports unknown fields, and refuses values of the wrong type.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::clock::{format_micro_time, format_time};
use super::{FieldType, Presence, Shape, Struct, Type};
use crate::quantity::{self, Quantity};

#[derive(Default)]
struct Decoder {
    /// Field names from the root to the current field.
    path: Vec<String>,
    unknown: Vec<String>,
}

/// Decodes an object, without the root's `apiVersion` and `kind`, into one without unknown fields and nulls. Also returns
/// the strict decoding errors, such as `unknown field "spec.nodename"`.
///
/// # Errors
/// The path of a field with a value of the wrong type, and the type.
pub(crate) fn decode(
    schema: &'static Struct,
    mut object: Map<String, Value>,
) -> Result<(Map<String, Value>, Vec<String>), String> {
    object.retain(|name, _| !matches!(name.as_str(), "apiVersion" | "kind"));
    let mut decoder = Decoder::default();
    let object = decoder.object(schema, object)?;
    Ok((object, decoder.unknown))
}

/// What a JSON value is, in errors.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

// === impl Decoder ===

impl Decoder {
    fn object(
        &mut self,
        schema: &'static Struct,
        object: Map<String, Value>,
    ) -> Result<Map<String, Value>, String> {
        let mut decoded = Map::new();
        for (name, value) in object {
            let Some(field) = schema.fields.get(name.as_str()) else {
                self.path.push(name);
                self.unknown
                    .push(format!("unknown field {:?}", self.path.join(".")));
                self.path.pop();
                continue;
            };
            if value.is_null() {
                continue;
            }
            self.path.push(name.clone());
            let value = self.value(field.ty, value)?;
            self.path.pop();
            // For a field that is not a pointer, the zero value means unset.
            let is_empty = field.ty.shape == Shape::One && field.ty.is_zero(&value);
            if !(is_empty && field.presence == Presence::OmitEmpty) {
                decoded.insert(name, value);
            }
        }
        Ok(decoded)
    }

    fn value(&mut self, ty: FieldType, value: Value) -> Result<Value, String> {
        match (ty.shape, ty.structure(), value) {
            (Shape::One, Some(schema), Value::Object(object)) => {
                self.object(schema, object).map(Value::Object)
            }
            (Shape::List, _, Value::Array(items)) => {
                let at = self.path.len() - 1;
                let name = self.path[at].clone();
                let mut decoded = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    self.path[at] = format!("{name}[{index}]");
                    decoded.push(self.item(ty.element(), item)?);
                }
                self.path[at] = name;
                Ok(Value::Array(decoded))
            }
            (Shape::Map, _, Value::Object(entries)) => {
                let mut decoded = Map::new();
                for (key, item) in entries {
                    decoded.insert(key, self.item(ty.element(), item)?);
                }
                Ok(Value::Object(decoded))
            }
            (Shape::One, _, value) => self.scalar(ty, value),
            (Shape::List, _, value) => Err(self.mismatch("an array", &value)),
            (Shape::Map, _, value) => Err(self.mismatch("an object", &value)),
        }
    }

    /// An element of a list or a map; null decodes to the zero value.
    fn item(&mut self, ty: FieldType, value: Value) -> Result<Value, String> {
        if value.is_null() {
            return Ok(ty.zero());
        }
        self.value(ty, value)
    }

    fn scalar(&self, ty: FieldType, value: Value) -> Result<Value, String> {
        let expected = match (ty.base, &value) {
            (Type::Bool, Value::Bool(_)) | (Type::String | Type::IntOrString, Value::String(_)) => {
                return Ok(value);
            }
            (Type::Any, _) => return Ok(value),
            (Type::Int32 | Type::IntOrString, Value::Number(number))
                if number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()) =>
            {
                return Ok(value);
            }
            (Type::Int64, Value::Number(number)) if number.as_i64().is_some() => return Ok(value),
            (Type::Bytes, Value::String(text)) => match STANDARD.decode(text) {
                Ok(_) => return Ok(value),
                Err(_) => "base64",
            },
            (Type::Time, Value::String(text)) => match text.parse::<Timestamp>() {
                Ok(time) => return Ok(format_time(time).into()),
                Err(_) => "a time in RFC 3339",
            },
            (Type::MicroTime, Value::String(text)) => match text.parse::<Timestamp>() {
                Ok(time) => return Ok(format_micro_time(time).into()),
                Err(_) => "a time in RFC 3339",
            },
            (Type::Quantity, Value::String(text)) => match Quantity::parse(text.trim()) {
                Some(quantity) => return Ok(quantity.to_string().into()),
                None => quantity::SYNTAX,
            },
            (Type::Quantity, Value::Number(number)) => match Quantity::parse(&number.to_string()) {
                Some(quantity) => return Ok(quantity.to_string().into()),
                None => quantity::SYNTAX,
            },
            (Type::Bool, _) => "a boolean",
            (Type::Int32 | Type::IntOrString, _) => "a number of 32 bits",
            (Type::Int64, _) => "a number of 64 bits",
            (Type::String | Type::Bytes | Type::Time | Type::MicroTime, _) => "a string",
            (Type::Quantity, _) => "a quantity",
            (Type::Struct(_), _) => "an object",
        };
        Err(self.mismatch(expected, &value))
    }

    fn mismatch(&self, expected: &str, value: &Value) -> String {
        let shown = match value {
            Value::String(_) | Value::Number(_) | Value::Bool(_) => value.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => kind(value).to_owned(),
        };
        format!("{} must be {expected}, but is {shown}", self.path.join("."))
    }
}
