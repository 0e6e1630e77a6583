//! Decodes a JSON object as Go's decoder does: unknown fields are dropped and reported, wrong types are errors.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::quantity::{self, Quantity};
use super::{Schema, Type};

/// A decoded object.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// The object without unknown fields and nulls.
    pub(crate) object: Map<String, Value>,
    /// Strict decoding errors, such as `unknown field "spec.nodename"`.
    pub(crate) unknown: Vec<String>,
}

struct Decoder<'a> {
    schema: &'a Schema,
    /// Field names down to the current one.
    path: Vec<String>,
    unknown: Vec<String>,
}

/// Decodes `value`; `apiVersion` and `kind` of the root are left out.
///
/// # Errors
/// The text of Go's decoder if a field has the wrong type.
pub(crate) fn decode(schema: &Schema, mut object: Map<String, Value>) -> Result<Decoded, String> {
    object.remove("apiVersion");
    object.remove("kind");
    let mut decoder = Decoder {
        schema,
        path: Vec::new(),
        unknown: Vec::new(),
    };
    let object = decoder.object(0, object)?;
    Ok(Decoded {
        object,
        unknown: decoder.unknown,
    })
}

// === impl Decoder ===

impl Decoder<'_> {
    fn object(&mut self, number: usize, object: Map<String, Value>) -> Result<Map<String, Value>, String> {
        let schema = self.schema;
        let known = schema.get(number);
        let mut decoded = Map::new();
        for (name, value) in object {
            let Some(field) = known.fields.get(name.as_str()) else {
                let path = self.path_to(&name);
                self.unknown.push(format!("unknown field {path:?}"));
                continue;
            };
            if value.is_null() {
                continue;
            }
            self.path.push(name.clone());
            let value = self.value(known.name, field.ty, value)?;
            self.path.pop();
            decoded.insert(name, value);
        }
        Ok(decoded)
    }

    fn value(&mut self, owner: &'static str, ty: Type, value: Value) -> Result<Value, String> {
        match (ty, value) {
            (Type::Struct(number), Value::Object(object)) => self.object(number, object).map(Value::Object),
            (Type::List(element), Value::Array(items)) => {
                let ty = self.schema.element(element);
                let at = self.path.len() - 1;
                let name = self.path[at].clone();
                let mut decoded = Vec::with_capacity(items.len());
                for (index, item) in items.into_iter().enumerate() {
                    self.path[at] = format!("{name}[{index}]");
                    decoded.push(self.item(owner, ty, item)?);
                }
                self.path[at] = name;
                Ok(Value::Array(decoded))
            }
            (Type::Map(element), Value::Object(entries)) => {
                let ty = self.schema.element(element);
                let mut decoded = Map::new();
                for (key, item) in entries {
                    decoded.insert(key, self.item(owner, ty, item)?);
                }
                Ok(Value::Object(decoded))
            }
            (ty, value) => self.scalar(owner, ty, value),
        }
    }

    /// An element of a list or a map, where null stands for the zero value.
    fn item(&mut self, owner: &'static str, ty: Type, value: Value) -> Result<Value, String> {
        if value.is_null() {
            return Ok(super::zero(ty));
        }
        self.value(owner, ty, value)
    }

    fn scalar(&self, owner: &'static str, ty: Type, value: Value) -> Result<Value, String> {
        let fits = match (ty, &value) {
            (Type::Bool, Value::Bool(_)) | (Type::String, Value::String(_)) | (Type::Any, _) => true,
            (Type::Int32, Value::Number(number)) => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            (Type::Int64, Value::Number(number)) => number.as_i64().is_some(),
            (Type::Float, Value::Number(_)) => true,
            (Type::IntOrString, Value::String(_)) => true,
            (Type::IntOrString, Value::Number(number)) => number.as_i64().is_some(),
            (Type::Bytes, Value::String(text)) => return decoded_bytes(text).map(|()| value),
            (Type::Time | Type::MicroTime, Value::String(text)) => return time(ty, text),
            (Type::Quantity, Value::String(text)) => return quantity(text),
            (Type::Quantity, Value::Number(number)) => return quantity(&number.to_string()),
            _ => false,
        };
        if fits {
            return Ok(value);
        }
        Err(self.mismatch(owner, ty, &value))
    }

    /// The text of `json.UnmarshalTypeError`.
    fn mismatch(&self, owner: &str, ty: Type, value: &Value) -> String {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(number) if matches!(ty, Type::Int32 | Type::Int64) => &format!("number {number}"),
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let field: Vec<&str> = self
            .path
            .iter()
            .map(|name| name.split('[').next().unwrap_or_default())
            .collect();
        format!(
            "json: cannot unmarshal {found} into Go struct field {owner}.{} of type {}",
            field.join("."),
            self.go_type(ty, owner)
        )
    }

    fn go_type(&self, ty: Type, owner: &str) -> String {
        match ty {
            Type::Bool => "bool".into(),
            Type::Int32 => "int32".into(),
            Type::Int64 => "int64".into(),
            Type::Float => "float64".into(),
            Type::String => "string".into(),
            Type::Time | Type::MicroTime => "string".into(),
            Type::Quantity => "resource.Quantity".into(),
            Type::Bytes => "[]uint8".into(),
            Type::IntOrString => "intstr.IntOrString".into(),
            Type::Any => "interface {}".into(),
            Type::List(element) => format!("[]{}", self.go_type(self.schema.element(element), owner)),
            Type::Map(element) => format!("map[string]{}", self.go_type(self.schema.element(element), owner)),
            Type::Struct(number) => {
                let name = self.schema.get(number).name;
                let package = if matches!(name, "ObjectMeta" | "OwnerReference" | "LabelSelector") {
                    "v1"
                } else {
                    "v1"
                };
                format!("{package}.{name}")
            }
        }
    }

    fn path_to(&self, name: &str) -> String {
        let mut path = self.path.join(".");
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(name);
        path
    }
}

/// `parsing time` is the text of Go's `time.Parse`.
fn time(ty: Type, text: &str) -> Result<Value, String> {
    let layout = if ty == Type::Time {
        "2006-01-02T15:04:05Z07:00"
    } else {
        "2006-01-02T15:04:05.000000Z07:00"
    };
    let strict = text.len() >= 20 && text.as_bytes()[10] == b'T';
    let parsed: Option<Timestamp> = text.parse().ok().filter(|_| strict);
    let Some(parsed) = parsed else {
        return Err(format!(
            "parsing time {:?} as {layout:?}: cannot parse {:?} as \"2006\"",
            text, text
        ));
    };
    Ok(if ty == Type::Time {
        seconds(parsed).into()
    } else {
        micros(parsed).into()
    })
}

/// The form of `metav1.Time`: whole seconds.
pub(crate) fn seconds(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// The form of `metav1.MicroTime`.
pub(crate) fn micros(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn quantity(text: &str) -> Result<Value, String> {
    let text = text.trim();
    let parsed = Quantity::parse(text);
    parsed
        .map(|quantity| quantity.to_string().into())
        .ok_or_else(|| quantity::SYNTAX.to_owned())
}

fn decoded_bytes(text: &str) -> Result<(), String> {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    match STANDARD.decode(text) {
        Ok(_) => Ok(()),
        Err(
            base64::DecodeError::InvalidByte(at, _)
            | base64::DecodeError::InvalidLastSymbol { offset: at, .. },
        ) => Err(format!("illegal base64 data at input byte {at}")),
        Err(_) => Err(format!("illegal base64 data at input byte {}", text.len())),
    }
}
