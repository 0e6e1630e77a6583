//! Reads field names and types from a type's `Deserialize` implementation.
//!
//! The probe passes a deserializer to every field, one level after the other; the method that the visitor calls
//! on it determines the field's type. The types of the served kinds have no cycles.

use std::collections::BTreeMap;

use serde::de::value::{BorrowedStrDeserializer, StrDeserializer};
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::{Field, Merge, Schema, Struct, Type, tables};

type Error = serde::de::value::Error;

/// Collects the schema of `T`.
pub(super) fn probe<T: DeserializeOwned>() -> Schema {
    let mut schema = Schema::default();
    let mut found = Type::Any;
    // The values are not valid objects; only the requested fields matter.
    let _ignored = T::deserialize(Probe {
        schema: &mut schema,
        found: &mut found,
    })
    .is_ok();
    schema
}

/// Records the type that a visitor requests.
struct Probe<'a> {
    schema: &'a mut Schema,
    found: &'a mut Type,
}

/// Provides a value for each field of a struct.
struct Fields<'a> {
    schema: &'a mut Schema,
    struct_name: &'static str,
    is_root: bool,
    names: std::slice::Iter<'static, &'static str>,
    current: &'static str,
    found: &'a mut BTreeMap<&'static str, Field>,
}

/// Provides one entry of a list or of a map.
struct Element<'a> {
    schema: &'a mut Schema,
    found: &'a mut Type,
    offered: bool,
}

// === impl Probe ===

impl Probe<'_> {
    fn leaf<T>(self, ty: Type, value: Result<T, Error>) -> Result<T, Error> {
        *self.found = ty;
        value
    }
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf(Type::IntOrString, visitor.visit_i64(0))
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf(Type::Bool, visitor.visit_bool(false))
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf(Type::Int32, visitor.visit_i32(0))
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf(Type::Int64, visitor.visit_i64(0))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf(Type::Float, visitor.visit_f64(0.0))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.leaf(Type::String, visitor.visit_str(""))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        let text = match name {
            "Time" | "MicroTime" => "1970-01-01T00:00:00.000000Z",
            _ => "0",
        };
        *self.found = match name {
            "Time" => Type::Time,
            "MicroTime" => Type::MicroTime,
            "Quantity" => Type::Quantity,
            _ => Type::Any,
        };
        visitor.visit_newtype_struct(BorrowedStrDeserializer::<Error>::new(text))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut element = Type::Any;
        let result = visitor.visit_seq(Element {
            schema: self.schema,
            found: &mut element,
            offered: false,
        });
        self.schema.elements.push(element);
        *self.found = Type::List(self.schema.elements.len() - 1);
        result
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let mut element = Type::Any;
        let result = visitor.visit_map(Element {
            schema: self.schema,
            found: &mut element,
            offered: false,
        });
        self.schema.elements.push(element);
        *self.found = Type::Map(self.schema.elements.len() - 1);
        result
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let name = tables::go_name(name);
        let known = self.schema.by_name.get(name).copied();
        let number = known.unwrap_or_else(|| {
            self.schema.structs.push(Struct {
                name,
                fields: BTreeMap::new(),
            });
            self.schema.by_name.insert(name, self.schema.structs.len() - 1);
            self.schema.structs.len() - 1
        });
        *self.found = Type::Struct(number);
        let names = if known.is_some() { &[][..] } else { fields };
        let mut found = BTreeMap::new();
        let result = visitor.visit_map(Fields {
            schema: self.schema,
            struct_name: name,
            is_root: number == 0,
            names: names.iter(),
            current: "",
            found: &mut found,
        });
        if known.is_none() {
            self.schema.structs[number].fields = found;
        }
        result
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
        ignored_any
    }
}

// === impl Fields ===

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        // A kind checks its own `kind` and `apiVersion`, which are not part of its schema.
        let is_kind = self.is_root;
        let next = self
            .names
            .find(|name| !(is_kind && matches!(**name, "apiVersion" | "kind")));
        let Some(name) = next else {
            return Ok(None);
        };
        self.current = name;
        seed.deserialize(StrDeserializer::<Error>::new(name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let mut ty = Type::String;
        let result = seed.deserialize(Probe {
            schema: self.schema,
            found: &mut ty,
        });
        if let (("Secret", "data"), Type::Map(element)) = ((self.struct_name, self.current), ty) {
            self.schema.elements[element] = Type::Bytes;
        }
        let field = Field {
            ty,
            presence: tables::presence(self.struct_name, self.current),
            merge: tables::merge(self.struct_name, self.current).map_or(Merge::Replace, Merge::By),
        };
        self.found.insert(self.current, field);
        result
    }
}

// === impl Element ===

impl<'de> SeqAccess<'de> for Element<'_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if std::mem::replace(&mut self.offered, true) {
            return Ok(None);
        }
        seed.deserialize(Probe {
            schema: self.schema,
            found: self.found,
        })
        .map(Some)
    }
}

impl<'de> MapAccess<'de> for Element<'_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if std::mem::replace(&mut self.offered, true) {
            return Ok(None);
        }
        seed.deserialize(StrDeserializer::<Error>::new("key")).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        let value = Probe {
            schema: self.schema,
            found: self.found,
        };
        seed.deserialize(value)
            .map_err(|error| Error::custom(error.to_string()))
    }
}
