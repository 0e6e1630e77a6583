//! The table of Kubernetes' protobuf messages.
//!
//! `messages.txt` has a line for each message: its name and, for each field, name, number and type. A test of `e2e`
//! generates the table from Kubernetes' own `generated.proto` files and compares.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde_json::{Map, Value};

static MESSAGES: LazyLock<HashMap<&'static str, Message>> = LazyLock::new(|| {
    let lines = include_str!("messages.txt").lines();
    lines.filter_map(Message::of_line).collect()
});

/// The fields of a message by their numbers.
#[derive(Debug)]
pub(super) struct Message(BTreeMap<u64, Field>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    /// Name in JSON. [`INLINE`] if the fields of the message take its place.
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) ty: Type,
}

/// Name of a field whose message is an embedded struct of Go.
pub(super) const INLINE: &str = "~";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    One,
    List,
    /// Keys are strings.
    Map,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Type {
    String,
    Bool,
    Int,
    Bytes,
    Time,
    MicroTime,
    Quantity,
    IntOrString,
    Message(&'static str),
}

/// An object with its fields in the order of their numbers, which is the order in Go's structs.
pub(crate) fn in_order_of_structs(
    api_version: &str,
    kind: &str,
    object: Map<String, Value>,
) -> Map<String, Value> {
    match message_of(api_version, kind) {
        Some(message) => message.sorted(object),
        None => object,
    }
}

pub(super) fn message_of(api_version: &str, kind: &str) -> Option<&'static Message> {
    let package = match api_version.split_once('/') {
        _ if kind == "DeleteOptions" => "meta",
        None => "core",
        Some((group, _)) => group.split('.').next().unwrap_or_default(),
    };
    MESSAGES.get(format!("{package}.{kind}").as_str())
}

pub(super) fn known(name: &str) -> &'static Message {
    MESSAGES
        .get(name)
        .expect("the table must have each message that it names")
}

// === impl Message ===

impl Message {
    fn of_line(line: &'static str) -> Option<(&'static str, Self)> {
        let mut words = line.split(' ');
        let name = words.next()?;
        let fields = words.filter_map(|word| {
            let (name, rest) = word.split_once('=')?;
            let (number, ty) = rest.split_once(':')?;
            Some((number.parse().ok()?, Field::new(name, ty)))
        });
        Some((name, Self(fields.collect())))
    }

    pub(super) fn field(&self, number: u64) -> Option<&Field> {
        self.0.get(&number)
    }

    /// The fields, those of embedded structs included, in the order of Go's struct.
    fn fields(&self) -> Vec<Field> {
        let mut fields = Vec::new();
        for field in self.0.values() {
            if let (Type::Message(name), INLINE) = (field.ty, field.name) {
                fields.extend(known(name).fields());
            } else {
                fields.push(*field);
            }
        }
        fields
    }

    fn sorted(&self, mut object: Map<String, Value>) -> Map<String, Value> {
        let mut sorted = Map::new();
        for field in self.fields() {
            if let Some(value) = object.remove(field.name) {
                sorted.insert(field.name.to_owned(), field.sorted(value));
            }
        }
        sorted.extend(object);
        sorted
    }
}

// === impl Field ===

impl Field {
    fn new(name: &'static str, ty: &'static str) -> Self {
        let (shape, ty) = if let Some(element) = ty.strip_prefix("[]") {
            (Shape::List, element)
        } else if let Some(value) = ty.strip_prefix("map[string]") {
            (Shape::Map, value)
        } else {
            (Shape::One, ty)
        };
        let ty = match ty {
            "string" => Type::String,
            "bool" => Type::Bool,
            "int" => Type::Int,
            "bytes" => Type::Bytes,
            "meta.Time" => Type::Time,
            "meta.MicroTime" => Type::MicroTime,
            "resource.Quantity" => Type::Quantity,
            "intstr.IntOrString" => Type::IntOrString,
            message => Type::Message(message),
        };
        Self { name, shape, ty }
    }

    /// A value of the field with the fields of its messages in order.
    fn sorted(&self, value: Value) -> Value {
        let Type::Message(name) = self.ty else {
            return value;
        };
        let sorted = |mut value: Value| {
            if let Value::Object(object) = &mut value {
                *object = known(name).sorted(std::mem::take(object));
            }
            value
        };
        match (self.shape, value) {
            (Shape::List, Value::Array(items)) => items.into_iter().map(sorted).collect(),
            (Shape::Map, Value::Object(entries)) => entries
                .into_iter()
                .map(|(key, value)| (key, sorted(value)))
                .collect(),
            (Shape::One, value) => sorted(value),
            (_, other) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::super::super::resource;
    use super::super::super::schema::{self, Schema};
    use super::*;

    /// Compares the names of the fields of a message and of the messages in it with those in JSON.
    fn compare(message: &'static str, schema: &Schema, number: usize, seen: &mut BTreeSet<&'static str>) {
        if !seen.insert(message) {
            return;
        }
        let ours = known(message).fields();
        let in_json = &schema.get(number).fields;
        // `apiVersion` and `kind` of an object are in the envelope.
        let names: BTreeSet<&str> = ours.iter().map(|field| field.name).collect();
        let is_envelope = |name: &&str| number == 0 && matches!(*name, "apiVersion" | "kind");
        let expected: BTreeSet<&str> = in_json
            .keys()
            .copied()
            .filter(|name| *name != "managedFields" && !is_envelope(name))
            .collect();
        assert_eq!(names, expected, "{message}");
        for field in ours {
            let Type::Message(next) = field.ty else { continue };
            let mut ty = in_json[field.name].ty;
            while let schema::Type::List(element) | schema::Type::Map(element) = ty {
                ty = schema.element(element);
            }
            if let schema::Type::Struct(number) = ty {
                compare(next, schema, number, seen);
            }
        }
    }

    #[test]
    fn table_has_the_fields_of_json() {
        for resource in resource::all() {
            let package = resource.group.split('.').next().filter(|group| !group.is_empty());
            let name = format!("{}.{}", package.unwrap_or("core"), resource.kind_name);
            let (name, _) = MESSAGES
                .get_key_value(name.as_str())
                .expect("each kind must have a message");
            compare(name, &resource.schema, 0, &mut BTreeSet::new());
        }
    }

    #[test]
    fn sorts_fields_as_structs() {
        let event = json!({
            "type": "Normal",
            "metadata": { "labels": { "b": "", "a": "" }, "name": "a" },
            "reportingController": "c",
            "extra": 1,
            "eventTime": null,
        });
        let Value::Object(event) = event else {
            unreachable!()
        };
        let sorted = in_order_of_structs("events.k8s.io/v1", "Event", event);
        let expected = r#"{"metadata":{"name":"a","labels":{"b":"","a":""}},"eventTime":null,"reportingController":"c","type":"Normal","extra":1}"#;
        assert_eq!(serde_json::to_string(&sorted).unwrap(), expected);
    }
}
