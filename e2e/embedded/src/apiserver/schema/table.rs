//! Reads `types.txt`, which a test of `e2e` generates from the sources of Kubernetes. The test describes its syntax.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{Field, FieldType, Presence, Shape, Struct, Type};

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::parse(include_str!("types.txt")));

/// Name of an embedded struct: its fields are those of the struct around it in JSON.
pub(crate) const INLINE: &str = "~";

struct Table {
    structs: Vec<Struct>,
    names: Names,
}

#[derive(Default)]
struct Names {
    /// The numbers of structs.
    structs: HashMap<&'static str, usize>,
    /// The types of which other types are new names.
    underlying: HashMap<&'static str, &'static str>,
}

/// The struct of a kind or of options, if clients send it.
pub(crate) fn find(group: &str, kind: &str) -> Option<&'static Struct> {
    let package = match group.split('.').next().unwrap_or_default() {
        _ if kind == "DeleteOptions" => "meta",
        "" => "core",
        package => package,
    };
    let number = TABLE.names.structs.get(format!("{package}.{kind}").as_str())?;
    Some(get(*number))
}

/// The struct of a kind or of options.
pub(crate) fn of(group: &str, kind: &str) -> &'static Struct {
    find(group, kind).expect("types.txt must have each kind that clients send")
}

/// The struct with a number.
pub(crate) fn get(number: usize) -> &'static Struct {
    let found = TABLE.structs.get(number);
    found.expect("a struct's number must exist")
}

// === impl Table ===

impl Table {
    fn parse(text: &'static str) -> Self {
        let mut names = Names::default();
        let mut structs = Vec::new();
        for line in text.lines() {
            let (name, rest) = line.split_once(' ').expect("a type must have a declaration");
            if rest.contains('=') {
                names.structs.insert(name, structs.len());
                structs.push((name, rest));
            } else {
                names.underlying.insert(name, rest);
            }
        }
        let declared: Vec<Vec<Field>> = structs
            .iter()
            .map(|(_, fields)| fields.split(' ').map(|entry| names.field(entry)).collect())
            .collect();
        let structs = structs
            .into_iter()
            .zip(&declared)
            .map(|((name, _), fields)| Struct {
                name: name.rsplit('.').next().unwrap_or(name),
                declared: fields.clone(),
                fields: in_json(fields, &declared)
                    .into_iter()
                    .map(|field| (field.name, field))
                    .collect(),
            });
        Self {
            structs: structs.collect(),
            names,
        }
    }
}

/// Fields with those of embedded structs.
fn in_json(fields: &[Field], declared: &[Vec<Field>]) -> Vec<Field> {
    let mut found = Vec::new();
    for field in fields {
        if let Type::Struct(number) = field.ty.base
            && field.name == INLINE
        {
            found.extend(in_json(&declared[number], declared));
        } else {
            found.push(*field);
        }
    }
    found
}

// === impl Names ===

impl Names {
    fn field(&self, entry: &'static str) -> Field {
        let mut parts = entry.split(',');
        let declaration = parts.next().and_then(|part| part.split_once('='));
        let declaration = declaration.and_then(|(name, rest)| Some((name, rest.split_once(':')?)));
        let (name, (number, ty)) = declaration.expect("a field must have a number and a type");
        let (is_pointer, ty) = ty.strip_prefix('*').map_or((false, ty), |target| (true, target));
        let options: Vec<&str> = parts.collect();
        Field {
            name,
            number: number.parse().ok(),
            ty: self.field_type(ty),
            presence: match (is_pointer, options.contains(&"always")) {
                (false, false) => Presence::OmitEmpty,
                (true, false) => Presence::Optional,
                (false, true) => Presence::Always,
                (true, true) => Presence::Nullable,
            },
            merge_key: options.iter().find_map(|option| option.strip_prefix("merge=")),
            retains_keys: options.contains(&"retainKeys"),
        }
    }

    fn field_type(&self, name: &'static str) -> FieldType {
        let underlying = self.underlying.get(name).copied().unwrap_or(name);
        let (shape, element) =
            if let Some((_, value)) = underlying.split_once(']').filter(|_| underlying != "[]byte") {
                let is_list = underlying.starts_with("[]");
                (if is_list { Shape::List } else { Shape::Map }, value)
            } else {
                (Shape::One, underlying)
            };
        FieldType {
            name,
            shape,
            base: self.scalar(element),
        }
    }

    fn scalar(&self, name: &'static str) -> Type {
        match self.underlying.get(name).copied().unwrap_or(name) {
            "bool" => Type::Bool,
            "int32" => Type::Int32,
            "int64" => Type::Int64,
            "string" => Type::String,
            "[]byte" => Type::Bytes,
            "meta.Time" => Type::Time,
            "meta.MicroTime" => Type::MicroTime,
            "meta.FieldsV1" => Type::Any,
            // A list in a map: `attestations` of TokenRequests, which the server does not read.
            name if name.starts_with("[]") => Type::Any,
            "resource.Quantity" => Type::Quantity,
            "intstr.IntOrString" => Type::IntOrString,
            name => Type::Struct(*self.structs.get(name).expect("a type must be declared")),
        }
    }
}
