//! Decodes bodies in Kubernetes' protobuf encoding, which kubectl and client-go send for built-in kinds, into the same
//! objects in JSON.

mod messages;
mod wire;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::schema;
use messages::{Field, INLINE, Message, Shape, Type, known, message_of};
use wire::{Reader, Wire};

pub(crate) use messages::in_order_of_structs;

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
    if let Some(message) = message_of(&found_version, &found_kind) {
        message.decode(raw, &mut object)?;
    }
    Ok(Value::Object(object))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

// === impl Message ===

impl Message {
    /// Adds the fields in `bytes` to `object`.
    fn decode(&self, bytes: &[u8], object: &mut Map<String, Value>) -> Result<(), String> {
        for field in Reader(bytes) {
            let (number, wire) = field?;
            // Go ignores unknown fields.
            let Some(field) = self.field(number) else {
                continue;
            };
            match (field.shape, wire) {
                (Shape::One, wire) if field.name == INLINE => {
                    if let (Type::Message(name), Wire::Bytes(bytes)) = (field.ty, wire) {
                        known(name).decode(bytes, object)?;
                    }
                }
                (Shape::One, wire) => {
                    let value = field.ty.decode(wire)?;
                    object.insert(field.name.to_owned(), value);
                }
                (Shape::List, wire) => {
                    let value = field.ty.decode(wire)?;
                    let list = object
                        .entry(field.name)
                        .or_insert_with(|| Value::Array(Vec::new()));
                    if let Value::Array(items) = list {
                        items.push(value);
                    }
                }
                (Shape::Map, wire) => {
                    let (key, value) = field.entry(wire)?;
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
}

// === impl Field ===

impl Field {
    /// Key and value of an entry of a map.
    fn entry(&self, wire: Wire<'_>) -> Result<(String, Value), String> {
        let mut key = String::new();
        let mut value = None;
        for field in Reader(wire.bytes()?) {
            match field? {
                (1, wire) => key = text(wire.bytes()?),
                (2, wire) => value = Some(self.ty.decode(wire)?),
                _ => {}
            }
        }
        let value = match value {
            Some(value) => value,
            None => self.ty.decode(self.ty.empty())?,
        };
        Ok((key, value))
    }
}

// === impl Type ===

impl Type {
    /// The wire value of an omitted field.
    fn empty(self) -> Wire<'static> {
        match self {
            Self::Bool | Self::Int => Wire::Number(0),
            Self::String
            | Self::Bytes
            | Self::Time
            | Self::MicroTime
            | Self::Quantity
            | Self::IntOrString
            | Self::Message(_) => Wire::Bytes(&[]),
        }
    }

    fn decode(self, wire: Wire<'_>) -> Result<Value, String> {
        Ok(match self {
            Self::Bool => (wire.number()? != 0).into(),
            Self::Int => wire.number()?.cast_signed().into(),
            Self::String => text(wire.bytes()?).into(),
            Self::Bytes => STANDARD.encode(wire.bytes()?).into(),
            Self::Time => match time(wire.bytes()?)? {
                Some(time) => schema::seconds(time).into(),
                None => Value::Null,
            },
            Self::MicroTime => match time(wire.bytes()?)? {
                Some(time) => schema::micros(time).into(),
                None => Value::Null,
            },
            Self::Quantity => {
                let mut quantity = "0".to_owned();
                for field in Reader(wire.bytes()?) {
                    if let (1, wire) = field? {
                        quantity = text(wire.bytes()?);
                    }
                }
                quantity.into()
            }
            Self::IntOrString => int_or_string(wire.bytes()?)?,
            Self::Message(name) => {
                let mut object = Map::new();
                known(name).decode(wire.bytes()?, &mut object)?;
                Value::Object(object)
            }
        })
    }
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
