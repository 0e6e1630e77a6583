//! The schema of a kind: the fields of its structs, their types, and which of them are serialized when empty.
//!
//! Field names and types are read from the types of `k8s-openapi` at start ([`probe`]); properties that these
//! lack (pointers, merge keys, fields that Go always writes) are in [`tables`].

mod decode;
mod go_types;
mod probe;
mod tables;

use std::collections::{BTreeMap, HashMap};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub(crate) use decode::{Codec, decode, micros, seconds, type_error_of_text};
pub(crate) use tables::strategy;

/// The type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Bool,
    Int32,
    Int64,
    Float,
    String,
    Time,
    MicroTime,
    Quantity,
    /// Base64 text.
    Bytes,
    IntOrString,
    /// A list of the type with this number.
    List(usize),
    /// A map from strings to the type with this number.
    Map(usize),
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

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) ty: Type,
    pub(crate) presence: Presence,
    /// Its strategy in a strategic merge patch.
    pub(crate) merge: Merge,
}

/// The strategy of a list in a strategic merge patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Merge {
    /// The patch's list replaces the list.
    Replace,
    /// Lists of scalars are united; lists of structs are merged by this key (empty for scalars).
    By(&'static str),
}

/// A struct.
#[derive(Debug)]
pub(crate) struct Struct {
    /// Its name in Go.
    pub(crate) name: &'static str,
    pub(crate) fields: BTreeMap<&'static str, Field>,
}

/// The structs of one kind; number 0 is the root.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    structs: Vec<Struct>,
    /// Types of list elements and map values.
    elements: Vec<Type>,
    by_name: HashMap<&'static str, usize>,
}

// === impl Type ===

impl Type {
    /// Whether Go's type implements its own decoder.
    fn decodes_itself(self) -> bool {
        matches!(
            self,
            Self::Time | Self::MicroTime | Self::Quantity | Self::IntOrString
        )
    }
}

// === impl Schema ===

impl Schema {
    /// Reads the schema of `T`.
    pub(crate) fn of<T: DeserializeOwned>() -> Self {
        let schema = probe::probe::<T>();
        debug_assert!(!schema.structs.is_empty(), "a kind must be a struct");
        schema
    }

    pub(crate) fn get(&self, number: usize) -> &Struct {
        self.structs.get(number).expect("a struct's number must exist")
    }

    /// The struct of a field or of its elements.
    fn struct_of(&self, ty: Type) -> Option<&Struct> {
        match ty {
            Type::Struct(number) => Some(self.get(number)),
            Type::List(element) | Type::Map(element) => self.struct_of(self.element(element)),
            Type::Bool
            | Type::Int32
            | Type::Int64
            | Type::Float
            | Type::String
            | Type::Time
            | Type::MicroTime
            | Type::Quantity
            | Type::Bytes
            | Type::IntOrString
            | Type::Any => None,
        }
    }

    pub(crate) fn element(&self, number: usize) -> Type {
        *self.elements.get(number).expect("an element's number must exist")
    }

    pub(crate) fn structs(&self) -> &[Struct] {
        &self.structs
    }

    /// Adds the fields that Go always writes, and drops those that Go omits when they are empty.
    pub(crate) fn normalize(&self, object: &mut Map<String, Value>) {
        self.normalize_struct(0, object);
    }

    fn normalize_struct(&self, number: usize, object: &mut Map<String, Value>) {
        let fields = &self.get(number).fields;
        object.retain(|name, value| {
            let Some(field) = fields.get(name.as_str()) else {
                return true;
            };
            self.normalize_value(field.ty, value);
            if field.presence == Presence::Always && value.as_array().is_some_and(Vec::is_empty) {
                // The store does not distinguish an empty list from a missing one.
                *value = Value::Null;
            }
            field.presence != Presence::OmitEmpty || !is_zero(field.ty, value)
        });
        for (name, field) in fields {
            if object.contains_key(*name) {
                continue;
            }
            if field.presence == Presence::Nullable {
                object.insert((*name).to_owned(), Value::Null);
            }
            if field.presence == Presence::Always {
                let mut zero = zero(field.ty);
                self.normalize_value(field.ty, &mut zero);
                object.insert((*name).to_owned(), zero);
            }
        }
    }

    fn normalize_value(&self, ty: Type, value: &mut Value) {
        match (ty, value) {
            (Type::Struct(number), Value::Object(object)) => self.normalize_struct(number, object),
            (Type::List(element), Value::Array(items)) => {
                let ty = self.element(element);
                items.iter_mut().for_each(|item| self.normalize_value(ty, item));
            }
            (Type::Map(element), Value::Object(entries)) => {
                let ty = self.element(element);
                entries
                    .values_mut()
                    .for_each(|item| self.normalize_value(ty, item));
            }
            _ => {}
        }
    }
}

/// Whether Go's `omitempty` omits the value. A struct is never empty: its field is a pointer.
fn is_zero(ty: Type, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(entries) => matches!(ty, Type::Map(_)) && entries.is_empty(),
    }
}

fn zero(ty: Type) -> Value {
    match ty {
        Type::Bool => false.into(),
        Type::Int32 | Type::Int64 | Type::Float | Type::IntOrString => 0.into(),
        // The store does not distinguish missing bytes from an empty string.
        Type::String | Type::Bytes => "".into(),
        Type::Quantity => "0".into(),
        Type::Struct(_) => Value::Object(Map::new()),
        Type::Time | Type::MicroTime | Type::List(_) | Type::Map(_) | Type::Any => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Event, Pod};
    use k8s_openapi::api::storage::v1::VolumeAttachment;
    use serde_json::json;

    use super::*;

    #[test]
    fn knows_fields_and_types_of_a_kind() {
        let schema = Schema::of::<Pod>();
        let find = |name: &str| schema.structs.iter().find(|found| found.name == name);
        let spec = find("PodSpec").unwrap();
        assert_eq!(spec.fields["nodeName"].ty, Type::String);
        assert_eq!(spec.fields["terminationGracePeriodSeconds"].ty, Type::Int64);
        assert_eq!(spec.fields["volumes"].merge, Merge::By("name"));
        assert_eq!(
            find("HTTPGetAction").unwrap().fields["port"].ty,
            Type::IntOrString
        );
        let limits = find("ResourceRequirements").unwrap().fields["limits"].ty;
        assert!(matches!(limits, Type::Map(element) if schema.element(element) == Type::Quantity));
        assert_eq!(
            find("ObjectMeta").unwrap().fields["creationTimestamp"].ty,
            Type::Time
        );
    }

    #[test]
    fn converts_numbers_like_go() {
        let schema = Schema::of::<Event>();
        let object = json!({"count": 3_000_000_000_i64});
        let decoded = |codec| decode(&schema, object.as_object().unwrap().clone(), codec);
        assert_eq!(decoded(Codec::Converter).unwrap().object["count"], -1_294_967_296);
        let why = "json: cannot unmarshal number 3000000000 into Go struct field Event.count of type int32";
        assert_eq!(decoded(Codec::Json).unwrap_err(), why);
    }

    #[test]
    fn writes_fields_that_go_always_writes() {
        let schema = Schema::of::<VolumeAttachment>();
        let mut object = json!({"metadata": {"name": "a", "labels": {}, "finalizers": []}, "spec": {}});
        schema.normalize(object.as_object_mut().unwrap());
        let spec = json!({"attacher": "", "nodeName": "", "source": {}});
        let expected = json!({"metadata": {"name": "a"}, "spec": spec, "status": {"attached": false}});
        assert_eq!(object, expected);
    }
}
