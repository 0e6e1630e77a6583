//! Kubernetes' API types: the fields of Go's structs, their types, and which of them are serialized when empty.

mod decode;
mod table;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

pub(crate) use decode::{decode, kind};
pub(crate) use table::{INLINE, find, get, of};

/// A struct.
#[derive(Debug)]
pub(crate) struct Struct {
    /// Its name in Go.
    pub(crate) name: &'static str,
    /// Its fields in Go's order; those named [`INLINE`] are embedded structs.
    pub(crate) declared: Vec<Field>,
    /// The fields, those of embedded structs included, by their names in JSON.
    pub(crate) fields: BTreeMap<&'static str, Field>,
}

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    /// Its name in JSON.
    pub(crate) name: &'static str,
    /// Its number in protobuf.
    pub(crate) number: Option<u64>,
    pub(crate) ty: FieldType,
    pub(crate) presence: Presence,
    /// The key by which a strategic merge patch merges the structs of a list, empty for a list of scalars; `None` if the
    /// patch replaces the list.
    pub(crate) merge_key: Option<&'static str>,
    /// Whether the elements of a patch's list name the keys to retain (the patch strategy `retainKeys`).
    pub(crate) retains_keys: bool,
}

/// The type of a field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FieldType {
    /// Its name in `types.txt`, without the star of a pointer.
    name: &'static str,
    pub(crate) shape: Shape,
    /// The type of the value, or of the elements.
    pub(crate) base: Type,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    One,
    List,
    /// Keys are strings.
    Map,
}

/// The type of a value that is neither a list nor a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Bool,
    Int32,
    Int64,
    String,
    Time,
    MicroTime,
    Quantity,
    /// Base64 text.
    Bytes,
    IntOrString,
    /// The struct with this number.
    Struct(usize),
    /// Any JSON value, stored unchanged.
    Any,
}

/// When a field is serialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// If it does not have the zero value.
    OmitEmpty,
    /// If it is set, even to the zero value (a pointer in Go).
    Optional,
    /// Always; as the zero value if it is not set.
    Always,
    /// Always; as null if it is not set.
    Nullable,
}

// === impl Struct ===

impl Struct {
    /// Adds the fields that Go always writes, and drops those that Go omits when they are empty.
    pub(crate) fn normalize(&self, object: &mut Map<String, Value>) {
        object.retain(|name, value| {
            let Some(field) = self.fields.get(name.as_str()) else {
                return true;
            };
            field.ty.normalize(value);
            if field.presence == Presence::Always && value.as_array().is_some_and(Vec::is_empty) {
                // The store does not distinguish an empty list from a missing one.
                *value = Value::Null;
            }
            match field.presence {
                Presence::OmitEmpty => !field.ty.is_zero(value),
                Presence::Optional => !value.is_null(),
                Presence::Always | Presence::Nullable => true,
            }
        });
        for (name, field) in &self.fields {
            if object.contains_key(*name) {
                continue;
            }
            if field.presence == Presence::Nullable {
                object.insert((*name).to_owned(), Value::Null);
            }
            if field.presence == Presence::Always {
                let mut zero = field.ty.zero();
                field.ty.normalize(&mut zero);
                object.insert((*name).to_owned(), zero);
            }
        }
    }
}

// === impl FieldType ===

impl FieldType {
    /// The struct of a value, or of the elements.
    pub(crate) fn structure(self) -> Option<&'static Struct> {
        if let Type::Struct(number) = self.base {
            Some(get(number))
        } else {
            None
        }
    }

    /// The type of the elements of a list or a map.
    fn element(self) -> Self {
        let (_, name) = self.name.split_once(']').unwrap_or(("", self.name));
        Self {
            name,
            shape: Shape::One,
            ..self
        }
    }

    fn normalize(self, value: &mut Value) {
        let Some(schema) = self.structure() else {
            return;
        };
        self.for_each(value, |item| {
            if let Value::Object(object) = item {
                schema.normalize(object);
            }
        });
    }

    /// Calls `visit` for a value, or for its elements.
    fn for_each(self, value: &mut Value, mut visit: impl FnMut(&mut Value)) {
        match (self.shape, value) {
            (Shape::One, value) => visit(value),
            (Shape::List, Value::Array(items)) => items.iter_mut().for_each(visit),
            (Shape::Map, Value::Object(entries)) => entries.values_mut().for_each(visit),
            (Shape::List | Shape::Map, _) => {}
        }
    }

    /// Whether Go's `omitempty` omits the value. A struct is never empty: its field is a pointer.
    fn is_zero(self, value: &Value) -> bool {
        match value {
            Value::Null => true,
            Value::Bool(value) => !value,
            Value::Number(value) => value.as_f64() == Some(0.0),
            Value::String(value) => value.is_empty(),
            Value::Array(value) => value.is_empty(),
            Value::Object(entries) => self.shape == Shape::Map && entries.is_empty(),
        }
    }

    fn zero(self) -> Value {
        match (self.shape, self.base) {
            (Shape::List | Shape::Map, _) => Value::Null,
            (Shape::One, Type::Bool) => false.into(),
            (Shape::One, Type::Int32 | Type::Int64 | Type::IntOrString) => 0.into(),
            // The store does not distinguish missing bytes from an empty string.
            (Shape::One, Type::String | Type::Bytes) => "".into(),
            (Shape::One, Type::Quantity) => "0".into(),
            (Shape::One, Type::Struct(_)) => Value::Object(Map::new()),
            (Shape::One, Type::Time | Type::MicroTime | Type::Any) => Value::Null,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Kind, object, a path in it, and what kube-apiserver 1.37 writes there.
    #[test]
    fn writes_fields_that_go_always_writes() {
        let container = |fields: Value| json!({"spec": {"containers": [fields]}});
        let limit = json!({"resourceFieldRef": {"resource": "limits.cpu"}});
        let table = [
            (
                "VolumeAttachment",
                json!({"metadata": {"name": "a", "labels": {}, "finalizers": []}, "spec": {}}),
                "",
                json!({
                    "metadata": {"name": "a"},
                    "spec": {"attacher": "", "nodeName": "", "source": {}},
                    "status": {"attached": false},
                }),
            ),
            (
                "PersistentVolume",
                json!({"spec": {"azureFile": {"secretName": "a", "shareName": "b"}}}),
                "/spec/azureFile",
                json!({"secretName": "a", "shareName": "b", "secretNamespace": null}),
            ),
            (
                "Node",
                json!({"status": {"runtimeHandlers": [{"features": {}, "name": ""}]}}),
                "/status/runtimeHandlers/0",
                json!({"features": {}, "name": ""}),
            ),
            (
                "Pod",
                container(json!({"env": [{"name": "A", "valueFrom": limit}]})),
                "/spec/containers/0/env/0/valueFrom/resourceFieldRef",
                json!({"divisor": "0", "resource": "limits.cpu"}),
            ),
        ];
        for (kind, object, pointer, expected) in table {
            let mut schemas = ["", "storage.k8s.io"].into_iter();
            let schema = schemas.find_map(|group| find(group, kind)).unwrap();
            let object = object.as_object().unwrap().clone();
            let (mut decoded, _) = decode(schema, object).unwrap();
            schema.normalize(&mut decoded);
            assert_eq!(
                Value::Object(decoded).pointer(pointer),
                Some(&expected),
                "{kind} {pointer}"
            );
        }
    }

    #[test]
    fn type_errors_name_the_field() {
        let table = [
            (
                json!({"spec": {"dnsPolicy": 1}}),
                "spec.dnsPolicy must be a string, but is 1",
            ),
            (
                json!({"spec": {"volumes": [{"emptyDir": []}]}}),
                "spec.volumes[0].emptyDir must be an object, but is an array",
            ),
            (
                json!({"spec": {"volumes": {}}}),
                "spec.volumes must be an array, but is an object",
            ),
            (
                json!({"spec": {"hostNetwork": "yes"}}),
                "spec.hostNetwork must be a boolean, but is \"yes\"",
            ),
            (
                json!({"spec": {"priority": 3_000_000_000_i64}}),
                "spec.priority must be a number of 32 bits, but is 3000000000",
            ),
            (
                json!({"metadata": {"creationTimestamp": "now"}}),
                "metadata.creationTimestamp must be a time in RFC 3339, but is \"now\"",
            ),
        ];
        for (object, expected) in table {
            let error = decode(of("", "Pod"), object.as_object().unwrap().clone()).unwrap_err();
            assert_eq!(error, expected);
        }
    }
}
