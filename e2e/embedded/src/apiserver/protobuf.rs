//! Decodes bodies in Kubernetes' protobuf encoding, which kubectl and client-go send for built-in kinds, into the same
//! objects in JSON.

mod wire;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::clock::{format_micro_time, format_time};
use super::schema::{self, Field, INLINE, Shape, Struct, Type};
use wire::{Reader, Wire};

/// First bytes of each body.
const PREFIX: &[u8; 4] = b"k8s\0";

/// Decodes a body; `api_version` and `kind` are the defaults for a body without them.
///
/// # Errors
/// The error text of Kubernetes' decoder.
pub(crate) fn decode(body: &[u8], api_version: &str, kind: &str) -> Result<Value, String> {
    if body.is_empty() {
        return Err("empty data".to_owned());
    }
    let Some(envelope) = body.strip_prefix(PREFIX) else {
        return Err(format!(
            "provided data does not appear to be a protobuf message, expected prefix {}",
            format!("{PREFIX:?}").replace(',', "")
        ));
    };
    if envelope.is_empty() {
        return Err("empty body".to_owned());
    }
    // `runtime.Unknown`.
    let (mut type_meta, mut raw): (&[u8], &[u8]) = (&[], &[]);
    for field in Reader(envelope) {
        match field? {
            (1, Wire::Bytes(bytes)) => type_meta = bytes,
            (2, Wire::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let (mut found_version, mut found_kind) = (String::new(), String::new());
    for field in Reader(type_meta) {
        match field? {
            (1, Wire::Bytes(bytes)) => found_version = text(bytes),
            (2, Wire::Bytes(bytes)) => found_kind = text(bytes),
            _ => {}
        }
    }
    if found_version.is_empty() {
        api_version.clone_into(&mut found_version);
    }
    if found_kind.is_empty() {
        kind.clone_into(&mut found_kind);
    }
    let mut object = Map::new();
    object.insert("apiVersion".to_owned(), found_version.as_str().into());
    object.insert("kind".to_owned(), found_kind.as_str().into());
    // An unknown kind is rejected by its name, as in JSON.
    let group = found_version.split_once('/').map_or("", |(group, _)| group);
    if let Some(schema) = schema::find(group, &found_kind) {
        add_fields(schema, raw, &mut object)?;
    }
    Ok(Value::Object(object))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Adds the fields in `bytes` to `object`.
fn add_fields(schema: &Struct, bytes: &[u8], object: &mut Map<String, Value>) -> Result<(), String> {
    for field in Reader(bytes) {
        let (number, wire) = field?;
        // Go ignores unknown fields.
        let mut known = schema.declared.iter();
        let Some(field) = known.find(|field| field.number == Some(number)) else {
            continue;
        };
        match (field.ty.shape, field.ty.structure()) {
            (Shape::One, Some(embedded)) if field.name == INLINE => {
                add_fields(embedded, wire.bytes()?, object)?
            }
            (Shape::One, _) => {
                object.insert(field.name.to_owned(), value(field, wire)?);
            }
            (Shape::List, _) => {
                let list = object
                    .entry(field.name)
                    .or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(items) = list {
                    items.push(value(field, wire)?);
                }
            }
            (Shape::Map, _) => {
                let (key, value) = entry(field, wire)?;
                let map = object
                    .entry(field.name)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(entries) = map {
                    entries.insert(key, value);
                }
            }
        }
    }
    Ok(())
}

/// Key and value of an entry of a map.
fn entry(map: &Field, wire: Wire<'_>) -> Result<(String, Value), String> {
    let mut key = String::new();
    let mut found = None;
    for field in Reader(wire.bytes()?) {
        match field? {
            (1, wire) => key = text(wire.bytes()?),
            (2, wire) => found = Some(value(map, wire)?),
            _ => {}
        }
    }
    let found = match found {
        Some(found) => found,
        // The wire value of an omitted field; no map has numbers.
        None => value(map, Wire::Bytes(&[]))?,
    };
    Ok((key, found))
}

/// A value of a field, or one of its elements.
fn value(field: &Field, wire: Wire<'_>) -> Result<Value, String> {
    Ok(match field.ty.base {
        Type::Bool => (wire.number()? != 0).into(),
        Type::Int32 | Type::Int64 => wire.number()?.cast_signed().into(),
        Type::String => text(wire.bytes()?).into(),
        Type::Bytes => STANDARD.encode(wire.bytes()?).into(),
        Type::Time => match time(wire.bytes()?)? {
            Some(time) => format_time(time).into(),
            None => Value::Null,
        },
        Type::MicroTime => match time(wire.bytes()?)? {
            Some(time) => format_micro_time(time).into(),
            None => Value::Null,
        },
        Type::Quantity => {
            let mut quantity = "0".to_owned();
            for field in Reader(wire.bytes()?) {
                if let (1, wire) = field? {
                    quantity = text(wire.bytes()?);
                }
            }
            quantity.into()
        }
        Type::IntOrString => int_or_string(wire.bytes()?)?,
        Type::Struct(number) => {
            let mut object = Map::new();
            add_fields(schema::get(number), wire.bytes()?, &mut object)?;
            Value::Object(object)
        }
        // `metav1.FieldsV1`, which the server ignores.
        Type::Any => Value::Null,
    })
}

/// `metav1.Timestamp`; an empty one stands for Go's zero time.
fn time(bytes: &[u8]) -> Result<Option<Timestamp>, String> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let (mut seconds, mut nanoseconds) = (0, 0);
    for field in Reader(bytes) {
        match field? {
            (1, wire) => seconds = wire.number()?.cast_signed(),
            (2, wire) => nanoseconds = wire.number()?.cast_signed(),
            _ => {}
        }
    }
    let nanoseconds = i32::try_from(nanoseconds).unwrap_or_default();
    Timestamp::new(seconds, nanoseconds)
        .map(Some)
        .map_err(|error| error.to_string())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut string) = (false, 0, String::new());
    for field in Reader(bytes) {
        match field? {
            (1, wire) => is_text = wire.number()? == 1,
            (2, wire) => number = wire.number()?.cast_signed(),
            (3, wire) => string = text(wire.bytes()?),
            _ => {}
        }
    }
    Ok(if is_text { string.into() } else { number.into() })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::wire::UNEXPECTED_EOF;
    use super::*;

    /// A length-delimited field.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let length = u8::try_from(bytes.len()).unwrap();
        assert!(length < 0x80, "the length must fit one byte");
        [&[number << 3 | 2, length], bytes].concat()
    }

    fn body(type_meta: &[u8], raw: &[u8]) -> Vec<u8> {
        [PREFIX.as_slice(), &field(1, type_meta), &field(2, raw)].concat()
    }

    #[test]
    fn decodes_maps_bytes_and_times() {
        let type_meta = [field(1, b"v1"), field(2, b"Secret")].concat();
        let time = [0x08, 0x80, 0xa3, 0x05];
        let metadata = [
            field(1, b"a"),
            field(8, &time),
            field(11, &[field(1, b"k"), field(2, b"v")].concat()),
        ];
        let data = field(2, &[field(1, b"key"), field(2, &[0, 255])].concat());
        let empty = field(2, &field(1, b"none"));
        let raw = [field(1, &metadata.concat()), data, empty, field(3, b"Opaque")].concat();
        let expected = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": "a", "creationTimestamp": "1970-01-02T00:00:00Z", "labels": { "k": "v" } },
            "data": { "key": "AP8=", "none": "" },
            "type": "Opaque",
        });
        assert_eq!(decode(&body(&type_meta, &raw), "v1", "Secret").unwrap(), expected);
    }

    #[test]
    fn decodes_embedded_structs_quantities_and_numbers() {
        let quantity = field(1, b"1Gi");
        let capacity = field(1, &[field(1, b"storage"), field(2, &quantity)].concat());
        let host_path = field(2, &field(3, &field(1, b"/x")));
        let raw = field(2, &[capacity, host_path].concat());
        let decoded = decode(&body(&[], &raw), "v1", "PersistentVolume").unwrap();
        let spec = json!({ "capacity": { "storage": "1Gi" }, "hostPath": { "path": "/x" } });
        assert_eq!(decoded["spec"], spec);

        let minus_one = [&[0x08][..], &[0xff; 9], &[0x01]].concat();
        let decoded = decode(&body(&[], &minus_one), "v1", "DeleteOptions").unwrap();
        assert_eq!(decoded["gracePeriodSeconds"], -1);
    }

    #[test]
    fn refuses_other_data_as_kubernetes_does() {
        let error = |body: &[u8]| decode(body, "v1", "Pod").unwrap_err();
        assert_eq!(error(b""), "empty data");
        assert_eq!(error(b"k8s\0"), "empty body");
        let prefix = "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]";
        assert_eq!(error(b"{}"), prefix);
        assert_eq!(error(b"k8s\0\x0a\x05"), UNEXPECTED_EOF);
        assert_eq!(error(&body(&[], &field(1, &[0x0f]))), "proto: illegal wireType 7");
    }
}
