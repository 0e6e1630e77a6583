//! Decodes a JSON object like Go's decoder: it drops and reports unknown fields, and returns an error for a wrong type.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::super::go_format;
use super::{Presence, Schema, Type, go_types};
use crate::quantity::{self, Quantity};

/// A decoded object.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// The object without unknown fields and nulls.
    pub(crate) object: Map<String, Value>,
    /// Strict decoding errors, such as `unknown field "spec.nodename"`.
    pub(crate) unknown: Vec<String>,
}

/// The code of Kubernetes that decodes a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// Go's JSON decoder.
    Json,
    /// `runtime.DefaultUnstructuredConverter`, which strategic merge patches use.
    Converter,
}

struct Decoder<'a> {
    schema: &'a Schema,
    codec: Codec,
    /// The first field with a wrong type. Go's decoder still decodes the rest, and an error of a type with its own
    /// decoder (times and quantities) takes precedence; the converter stops at the first error.
    mismatch: Option<String>,
    /// Field names from the root to the current field.
    path: Vec<String>,
    unknown: Vec<String>,
}

/// Decodes `value` without the root's `apiVersion` and `kind`.
///
/// # Errors
/// The codec's error text if a field has the wrong type.
pub(crate) fn decode(schema: &Schema, object: Map<String, Value>, codec: Codec) -> Result<Decoded, String> {
    let fields = object.into_iter();
    let object = fields
        .filter(|(name, _)| !matches!(name.as_str(), "apiVersion" | "kind"))
        .collect();
    let mut decoder = Decoder {
        schema,
        codec,
        mismatch: None,
        path: Vec::new(),
        unknown: Vec::new(),
    };
    let object = decoder.object(0, object)?;
    match decoder.mismatch {
        None => Ok(Decoded {
            object,
            unknown: decoder.unknown,
        }),
        Some(error) => Err(error),
    }
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
            // For a field that is not a pointer, the zero value means unset.
            let is_empty =
                !matches!(field.ty, Type::List(_) | Type::Map(_)) && super::is_zero(field.ty, &value);
            if !(is_empty && field.presence == Presence::OmitEmpty) {
                decoded.insert(name, value);
            }
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

    /// An element of a list or a map; null decodes to the zero value.
    fn item(&mut self, owner: &'static str, ty: Type, value: Value) -> Result<Value, String> {
        if value.is_null() {
            return Ok(super::zero(ty));
        }
        self.value(owner, ty, value)
    }

    fn scalar(&mut self, owner: &'static str, ty: Type, value: Value) -> Result<Value, String> {
        let fits = match (ty, &value) {
            (Type::Bool, Value::Bool(_)) | (Type::String, Value::String(_)) | (Type::Any, _) => true,
            (Type::Int32, Value::Number(number)) if self.codec == Codec::Converter && number.is_i64() => {
                return Ok(wrapped(number.as_i64().unwrap_or_default()).into());
            }
            (Type::Int32, Value::Number(number)) => number.as_i64().is_some_and(|n| i32::try_from(n).is_ok()),
            (Type::Int64, Value::Number(number)) => number.as_i64().is_some(),
            (Type::Float, Value::Number(_)) => true,
            (Type::IntOrString, Value::String(_)) => true,
            (Type::IntOrString, Value::Number(number)) => number.as_i64().is_some(),
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
            (Type::Time | Type::MicroTime, Value::String(text)) => return time(ty, text),
            (Type::Quantity, Value::String(text)) => return quantity(text),
            (Type::Quantity, Value::Number(number)) => return quantity(&number.to_string()),
            (Type::Quantity, _) => return Err(quantity::SYNTAX.to_owned()),
            _ => false,
        };
        if fits {
            return Ok(value);
        }
        let error = match self.codec {
            Codec::Json => self.type_error(owner, ty, &value),
            Codec::Converter => converter_mismatch(ty, &value, self.named(owner).as_deref()),
        };
        if ty.decodes_itself() {
            return Err(error);
        }
        self.fail(error)?;
        Ok(super::zero(ty))
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
    fn type_error(&self, owner: &str, ty: Type, value: &Value) -> String {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(number) if matches!(ty, Type::Int32 | Type::Int64) => &format!("number {number}"),
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        let named = self.named(owner);
        format!(
            "json: cannot unmarshal {found} into Go struct field {owner}.{} of type {}",
            self.go_path(),
            self.go_type(ty, named.as_deref())
        )
    }

    /// The path of the current field, including embedded structs.
    fn go_path(&self) -> String {
        let mut path = Vec::new();
        let mut current = Some(self.schema.get(0));
        for part in &self.path {
            let name = part.split('[').next().unwrap_or_default();
            path.extend(current.and_then(|found| go_types::embedded(found.name, name)));
            path.push(name);
            let ty = current
                .and_then(|found| found.fields.get(name))
                .map(|field| field.ty);
            current = ty.and_then(|ty| self.schema.struct_of(ty));
        }
        path.join(".")
    }

    /// The name of the type of the current field, if it has one.
    fn named(&self, owner: &str) -> Option<String> {
        let field = self.path.last()?.split('[').next()?;
        go_types::name(owner, field)
    }

    fn go_type(&self, ty: Type, named: Option<&str>) -> String {
        match ty {
            Type::String if named.is_some() => named.unwrap_or_default().to_owned(),
            Type::Map(_) if named == Some("v1.ResourceList") => "v1.ResourceList".into(),
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
            Type::List(element) => format!("[]{}", self.go_type(self.schema.element(element), named)),
            Type::Map(element) => {
                let key = match named {
                    Some("v1.ClaimResourceStatus") => "v1.ResourceName",
                    Some(_) | None => "string",
                };
                format!("map[{key}]{}", self.go_type(self.schema.element(element), named))
            }
            Type::Struct(number) => format!("v1.{}", self.schema.get(number).name),
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
fn converter_mismatch(ty: Type, value: &Value, named: Option<&str>) -> String {
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
        let found = super::super::go_format::kind(value);
        return format!("json: cannot unmarshal {found} into Go value of type string");
    }
    let wanted = match ty {
        Type::Struct(_) => return format!("cannot restore struct from: {found}"),
        Type::List(_) | Type::Bytes => return format!("cannot restore slice from {found}"),
        Type::Map(_) => return format!("cannot restore map from {found}"),
        Type::Bool => "bool",
        Type::Int32 => "int32",
        Type::Int64 => "int64",
        Type::Float => "float64",
        Type::String | Type::Time | Type::MicroTime | Type::Quantity | Type::IntOrString | Type::Any => {
            "string"
        }
    };
    // Go converts numbers among themselves and to strings.
    if matches!(value, Value::Number(_))
        && wanted != "bool"
        && !(number_is_float(value) && wanted == "string")
    {
        let named = named.filter(|_| ty == Type::String);
        return format!("cannot convert {found} to {}", named.unwrap_or(wanted));
    }
    format!("unrecognized type: {wanted}")
}

/// The same error for a string field whose value is not a string.
pub(crate) fn type_error_of_text(value: &Value) -> Option<String> {
    let is_text = value.is_string() || value.is_null();
    (!is_text).then(|| converter_mismatch(Type::String, value, None))
}

fn number_is_float(value: &Value) -> bool {
    value.as_number().is_some_and(serde_json::Number::is_f64)
}
