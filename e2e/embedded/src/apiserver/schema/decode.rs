//! Decodes a JSON object like Go's decoder: it drops and reports unknown fields, and returns an error for a wrong type.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::clock::{format_micro_time, format_time};
use super::super::go_format;
use super::{FieldType, Presence, Shape, Struct, Type};
use crate::quantity::{self, Quantity};

/// The code of Kubernetes that decodes a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// Go's JSON decoder.
    Json,
    /// `runtime.DefaultUnstructuredConverter`, which strategic merge patches use.
    Converter,
}

struct Decoder {
    root: &'static Struct,
    codec: Codec,
    /// The first field with a wrong type. Go's decoder still decodes the rest, and an error of a type with its own
    /// decoder (times and quantities) takes precedence; the converter stops at the first error.
    mismatch: Option<String>,
    /// Field names from the root to the current field.
    path: Vec<String>,
    unknown: Vec<String>,
}

/// Decodes an object, without the root's `apiVersion` and `kind`, into one without unknown fields and nulls. Also returns
/// the strict decoding errors, such as `unknown field "spec.nodename"`.
///
/// # Errors
/// The codec's error text if a field has the wrong type.
pub(crate) fn decode(
    schema: &'static Struct,
    object: Map<String, Value>,
    codec: Codec,
) -> Result<(Map<String, Value>, Vec<String>), String> {
    let fields = object.into_iter();
    let object = fields
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"))
        .collect();
    let mut decoder = Decoder {
        root: schema,
        codec,
        mismatch: None,
        path: Vec::new(),
        unknown: Vec::new(),
    };
    let object = decoder.object(schema, object)?;
    match decoder.mismatch {
        None => Ok((object, decoder.unknown)),
        Some(error) => Err(error),
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
                let path = self.path_to(&name);
                self.unknown.push(format!("unknown field {path:?}"));
                continue;
            };
            if value.is_null() {
                continue;
            }
            self.path.push(name.clone());
            let value = self.value(schema.name, field.ty, value)?;
            self.path.pop();
            // For a field that is not a pointer, the zero value means unset.
            let is_empty = field.ty.shape == Shape::One && field.ty.is_zero(&value);
            if !(is_empty && field.presence == Presence::OmitEmpty) {
                decoded.insert(name, value);
            }
        }
        Ok(decoded)
    }

    fn value(&mut self, owner: &'static str, ty: FieldType, value: Value) -> Result<Value, String> {
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
                    decoded.push(self.item(owner, ty.element(), item)?);
                }
                self.path[at] = name;
                Ok(Value::Array(decoded))
            }
            (Shape::Map, _, Value::Object(entries)) => {
                let mut decoded = Map::new();
                for (key, item) in entries {
                    decoded.insert(key, self.item(owner, ty.element(), item)?);
                }
                Ok(Value::Object(decoded))
            }
            (Shape::One, _, value) => self.scalar(owner, ty, value),
            (Shape::List | Shape::Map, _, value) => self.mismatch(owner, ty, &value),
        }
    }

    /// An element of a list or a map; null decodes to the zero value.
    fn item(&mut self, owner: &'static str, ty: FieldType, value: Value) -> Result<Value, String> {
        if value.is_null() {
            return Ok(ty.zero());
        }
        self.value(owner, ty, value)
    }

    fn scalar(&mut self, owner: &'static str, ty: FieldType, value: Value) -> Result<Value, String> {
        let fits = match (ty.base, &value) {
            (Type::Bool, Value::Bool(_)) | (Type::String, Value::String(_)) | (Type::Any, _) => true,
            (Type::Int32, Value::Number(number)) if self.codec == Codec::Converter && number.is_i64() => {
                return Ok(wrapped(number.as_i64().unwrap_or_default()).into());
            }
            (Type::Int32 | Type::IntOrString, Value::Number(number)) => {
                number.as_i64().is_some_and(|n| i32::try_from(n).is_ok())
            }
            (Type::Int64, Value::Number(number)) => number.as_i64().is_some(),
            (Type::IntOrString, Value::String(_)) => true,
            (Type::Bytes, Value::String(text)) => {
                if let Err(error) = decoded_bytes(text) {
                    let prefix = match self.codec {
                        Codec::Json => "",
                        Codec::Converter => "error decoding from json: ",
                    };
                    self.fail(format!("{prefix}{error}"))?;
                }
                return Ok(value);
            }
            (Type::Bytes, Value::Array(items)) => match encoded_bytes(items) {
                Some(encoded) => return Ok(encoded),
                None => false,
            },
            (Type::Time | Type::MicroTime, Value::String(text)) => return time(ty.base, text),
            (Type::Quantity, Value::String(text)) => return quantity(text),
            (Type::Quantity, Value::Number(number)) => return quantity(&number.to_string()),
            (Type::Quantity, _) => return Err(quantity::SYNTAX.to_owned()),
            _ => false,
        };
        if fits {
            Ok(value)
        } else {
            self.mismatch(owner, ty, &value)
        }
    }

    /// Reports a value of the wrong type, and returns the zero value.
    fn mismatch(&mut self, owner: &'static str, ty: FieldType, value: &Value) -> Result<Value, String> {
        let error = match self.codec {
            Codec::Json => self.type_error(owner, ty, value),
            Codec::Converter => converter_mismatch(ty, value),
        };
        if ty.decodes_itself() {
            return Err(error);
        }
        self.fail(error)?;
        Ok(ty.zero())
    }

    /// Keeps the first error, or returns it.
    fn fail(&mut self, error: String) -> Result<(), String> {
        if self.codec == Codec::Converter {
            return Err(error);
        }
        self.mismatch.get_or_insert(error);
        Ok(())
    }

    /// The text of `json.UnmarshalTypeError`.
    fn type_error(&self, owner: &str, ty: FieldType, value: &Value) -> String {
        let found = ty.found(value);
        format!(
            "json: cannot unmarshal {found} into Go struct field {owner}.{} of type {}",
            self.go_path(),
            ty.go_name()
        )
    }

    /// The path of the current field, including embedded structs.
    fn go_path(&self) -> String {
        let mut path = Vec::new();
        let mut current = Some(self.root);
        for part in &self.path {
            let name = part.split('[').next().unwrap_or_default();
            let field = current.and_then(|found| found.fields.get(name));
            path.extend(field.and_then(|field| field.embedded_in));
            path.push(name);
            current = field.and_then(|field| field.ty.structure());
        }
        path.join(".")
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

// === impl FieldType ===

impl FieldType {
    /// How errors of Go's decoder name a value of the wrong type.
    fn found(self, value: &Value) -> String {
        let integers = [Type::Int32, Type::Int64, Type::IntOrString];
        if self.shape == Shape::One
            && integers.contains(&self.base)
            && let Value::Number(number) = value
        {
            return format!("number {number}");
        }
        go_format::kind(value).to_owned()
    }

    /// The name in errors of Go's decoder. Each package is a version of an API group.
    fn go_name(self) -> String {
        match (self.shape, self.base) {
            (Shape::One, Type::Time | Type::MicroTime) => return "string".to_owned(),
            (Shape::One, Type::IntOrString) => return "int32".to_owned(),
            _ => {}
        }
        let name = self.name.replace("[]byte", "[]uint8");
        let packages = [
            "authentication.",
            "coordination.",
            "core.",
            "events.",
            "meta.",
            "policy.",
            "storage.",
        ];
        packages
            .iter()
            .fold(name, |name, package| name.replace(package, "v1."))
    }
}

/// `parsing time` is the text of Go's `time.Parse`.
fn time(ty: Type, text: &str) -> Result<Value, String> {
    let fraction = if ty == Type::MicroTime { ".000000" } else { "" };
    let parsed: Option<Timestamp> = text.parse().ok();
    let why = go_format::time_error(text, fraction)
        .or_else(|| parsed.is_none().then(|| ": day out of range".to_owned()));
    let (Some(parsed), None) = (parsed, &why) else {
        let layout = format!("2006-01-02T15:04:05{fraction}Z07:00");
        let why = why.unwrap_or_default();
        return Err(format!("parsing time {text:?} as {layout:?}{why}"));
    };
    Ok(if ty == Type::Time {
        format_time(parsed).into()
    } else {
        format_micro_time(parsed).into()
    })
}

fn quantity(text: &str) -> Result<Value, String> {
    let text = text.trim();
    let parsed = Quantity::parse(text);
    parsed
        .map(|quantity| quantity.to_string().into())
        .ok_or_else(|| quantity::SYNTAX.to_owned())
}

fn decoded_bytes(text: &str) -> Result<(), String> {
    STANDARD.decode(text).map(drop).map_err(|error| {
        let at = go_format::base64_offset(&error, text);
        format!("illegal base64 data at input byte {at}")
    })
}

/// A number as Go converts it to `int32`.
fn wrapped(number: i64) -> i32 {
    let low = u32::try_from(number.rem_euclid(1 << 32)).unwrap_or_default();
    low.cast_signed()
}

/// Go decodes a list of numbers into bytes, too.
fn encoded_bytes(items: &[Value]) -> Option<Value> {
    let bytes = items.iter().map(|item| u8::try_from(item.as_u64()?).ok());
    let bytes: Option<Vec<u8>> = bytes.collect();
    Some(STANDARD.encode(bytes?).into())
}

/// The text of `runtime.DefaultUnstructuredConverter`.
fn converter_mismatch(ty: FieldType, value: &Value) -> String {
    let found = match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    };
    if ty.decodes_itself() {
        let (found, wanted) = (ty.found(value), ty.go_name());
        return format!("json: cannot unmarshal {found} into Go value of type {wanted}");
    }
    let wanted = match (ty.shape, ty.base) {
        (Shape::Map, _) => return format!("cannot restore map from {found}"),
        (Shape::List, _) | (_, Type::Bytes) => return format!("cannot restore slice from {found}"),
        (Shape::One, Type::Struct(_)) => return format!("cannot restore struct from: {found}"),
        (Shape::One, Type::Bool) => "bool",
        (Shape::One, Type::Int32) => "int32",
        (Shape::One, Type::Int64) => "int64",
        (Shape::One, _) => "string",
    };
    // Go converts numbers among themselves, and integers to strings.
    let converts = match found {
        "float64" => matches!(wanted, "int32" | "int64"),
        "int64" => wanted != "bool",
        _ => false,
    };
    if converts {
        format!("cannot convert {found} to {}", ty.go_name())
    } else {
        format!("unrecognized type: {wanted}")
    }
}

/// The same error for a string field whose value is not a string.
pub(crate) fn type_error_of_text(value: &Value) -> Option<String> {
    let text = FieldType {
        name: "string",
        shape: Shape::One,
        base: Type::String,
    };
    let is_text = value.is_string() || value.is_null();
    (!is_text).then(|| converter_mismatch(text, value))
}
