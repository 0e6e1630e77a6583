//! Paths to the fields of a message, with the field names of the proto file, the keys of map entries, and the index of list entries
//! or `*` for any: `volume_capability.access_mode.mode`, `volume_capabilities.*.access_mode.mode`, `parameters.tier`.

use std::borrow::Cow;

use prost_reflect::{DynamicMessage, FieldDescriptor, MessageDescriptor, SerializeOptions};
use serde_json::Value;

use crate::rpc::validate::TOKENS;

pub(super) enum Target {
    Field(FieldDescriptor),
    /// The entry of a map with this key.
    Entry(FieldDescriptor, String),
    /// One entry of a list, or all of them.
    Element(FieldDescriptor),
}

/// Checks a path against the type of the message.
///
/// # Errors
/// Why the message has no such field.
pub(super) fn check(message: &MessageDescriptor, path: &[String]) -> Result<Target, String> {
    let (first, rest) = path
        .split_first()
        .map_or(("", path), |(first, rest)| (first.as_str(), rest));
    let field = message.get_field_by_name(first).ok_or_else(|| {
        let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
        match names.is_empty() {
            true => format!("{} has no fields", message.name()),
            false => format!(
                "{} has no field \"{first}\"; it has {}",
                message.name(),
                names.join(", ")
            ),
        }
    })?;
    let rest = match rest.split_first() {
        None => return Ok(Target::Field(field)),
        // Keys may contain dots, as those of topologies and labels do.
        Some(_) if field.is_map() => return Ok(Target::Entry(field, rest.join("."))),
        Some((index, _)) if field.is_list() && index != "*" && index.parse::<usize>().is_err() => {
            return Err(format!(
                "\"{}\" is a list: write the number of an entry, from 0, or *",
                field.name()
            ));
        }
        Some((_, [])) if field.is_list() => return Ok(Target::Element(field)),
        Some((_, rest)) if field.is_list() => rest,
        Some(_) => rest,
    };
    match field.kind().as_message() {
        Some(inner) => check(inner, rest),
        None => Err(format!("\"{}\" has no fields of its own", field.name())),
    }
}

/// Whether the field has secrets, which conditions and replies must not show.
pub(super) fn is_secret(path: &str) -> bool {
    path == "secrets" || path.starts_with("secrets.") || path.ends_with(TOKENS)
}

pub(super) fn parts(path: &str) -> Vec<String> {
    path.split('.').map(str::to_owned).collect()
}

pub(crate) fn json(message: &DynamicMessage) -> Value {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);
    // Requests of CSI have no field without JSON.
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .unwrap_or_default()
}

/// The values at a path; none for absent messages and entries.
pub(super) fn find<'v>(value: &'v Value, path: &[String]) -> Vec<Cow<'v, Value>> {
    let Some((first, rest)) = path.split_first() else {
        return match value.is_null() {
            true => Vec::new(),
            false => vec![Cow::Borrowed(value)],
        };
    };
    match value {
        Value::Object(fields) => {
            // The keys of maps may contain dots, as those of topologies do.
            let whole = || Some(vec![Cow::Borrowed(fields.get(&path.join("."))?)]);
            let inner = fields.get(first).map(|inner| find(inner, rest));
            inner
                .filter(|found| !found.is_empty())
                .or_else(whole)
                .unwrap_or_default()
        }
        Value::Array(items) if first == "*" => items.iter().flat_map(|item| find(item, rest)).collect(),
        Value::Array(items) => {
            let item = first.parse().ok().and_then(|index: usize| items.get(index));
            item.map(|item| find(item, rest)).unwrap_or_default()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}
