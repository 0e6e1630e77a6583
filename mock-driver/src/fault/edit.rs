//! Edits of a reply, applied to the message itself so that unknown fields survive.
//!
//! A path has the field names of the proto file, the keys of map entries, and the index of list entries or `*` for all:
//! `volume.capacity_bytes`, `publish_context.device`, `entries.*.status.published_node_ids`. Path and value are checked
//! against the reply's type when the rule is parsed.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, MapKey, MessageDescriptor, ReflectMessage, Value as Field,
};
use serde_json::{Map, Value, json};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Edits(Vec<Edit>);

#[derive(Clone, Debug, PartialEq)]
struct Edit {
    path: Vec<String>,
    /// Null removes the field.
    value: Value,
}

/// Sets a value along a path.
struct Setter<'a> {
    value: &'a Value,
    /// Adds missing list entries, to check the rest of the path.
    is_trial: bool,
}

// === impl Edits ===

impl Edits {
    /// Parses a mapping of paths to values for replies of a type.
    ///
    /// # Errors
    /// The path, and the error of the path or its value.
    pub(super) fn read(
        edits_by_path: &Map<String, Value>,
        reply: &MessageDescriptor,
    ) -> Result<Self, (String, String)> {
        let mut edits = Vec::new();
        for (path, value) in edits_by_path {
            let edit = Edit {
                path: path.split('.').map(str::to_owned).collect(),
                value: value.clone(),
            };
            let trial = Setter {
                value,
                is_trial: true,
            };
            trial
                .set(&mut DynamicMessage::new(reply.clone()), &edit.path)
                .map_err(|reason| (path.clone(), reason))?;
            edits.push(edit);
        }
        Ok(Self(edits))
    }

    /// Applies the edits. Paths to absent entries, such as the third entry of two, have no effect.
    pub(crate) fn apply(&self, reply: &mut DynamicMessage) {
        for edit in &self.0 {
            let setter = Setter {
                value: &edit.value,
                is_trial: false,
            };
            setter
                .set(reply, &edit.path)
                .expect("an edit must fit the type it was checked against");
        }
    }
}

// === impl Setter ===

impl Setter<'_> {
    fn set(&self, message: &mut DynamicMessage, path: &[String]) -> Result<(), String> {
        let (field, rest) = split(&message.descriptor(), path)?;
        if rest.is_empty() {
            if self.value.is_null() {
                message.clear_field(&field);
            } else {
                message.set_field(&field, parsed(&field, self.value.clone())?);
            }
            return Ok(());
        }
        if field.is_map() {
            return self.set_entry(message, &field, rest);
        }
        if field.is_list() {
            return self.set_element(message, &field, rest);
        }
        if self.value.is_null() && !message.has_field(&field) && !self.is_trial {
            return Ok(());
        }
        match message.get_field_mut(&field).as_message_mut() {
            Some(inner) => self.set(inner, rest),
            None => Err(format!("\"{}\" has no fields of its own", field.name())),
        }
    }

    fn set_entry(
        &self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        rest: &[String],
    ) -> Result<(), String> {
        // Keys may contain dots, as those of topologies and labels do.
        let text = rest.join(".");
        let key = MapKey::String(text.clone());
        let value = if self.value.is_null() {
            None
        } else {
            let whole = parsed(field, json!({ text: self.value }))?;
            whole.as_map().and_then(|map| map.get(&key).cloned())
        };
        if let Some(map) = message.get_field_mut(field).as_map_mut() {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn set_element(
        &self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        rest: &[String],
    ) -> Result<(), String> {
        let which = match rest[0].as_str() {
            "*" => None,
            number => Some(number.parse::<usize>().map_err(|_| {
                format!(
                    "\"{}\" is a list: \"{number}\" must be the number of an entry, from 0, or *",
                    field.name()
                )
            })?),
        };
        let replacement = match rest.len() {
            1 if !self.value.is_null() => {
                let whole = parsed(field, json!([self.value]))?;
                whole.as_list().and_then(|list| list.first().cloned())
            }
            _ => None,
        };
        let Some(list) = message.get_field_mut(field).as_list_mut() else {
            return Ok(());
        };
        if self.is_trial && list.is_empty() {
            list.push(empty_element(field));
        }
        if self.value.is_null() && rest.len() == 1 {
            match which {
                None => list.clear(),
                Some(number) if number < list.len() => {
                    list.remove(number);
                }
                Some(_) => {}
            }
            return Ok(());
        }
        for (number, element) in list.iter_mut().enumerate() {
            if !self.is_trial && which.is_some_and(|which| which != number) {
                continue;
            }
            match (&replacement, element.as_message_mut()) {
                (Some(replacement), _) => *element = replacement.clone(),
                (None, Some(inner)) => self.set(inner, &rest[1..])?,
                (None, None) => return Err(format!("entries of \"{}\" have no fields", field.name())),
            }
        }
        Ok(())
    }
}

pub(super) fn split<'p>(
    message: &MessageDescriptor,
    path: &'p [String],
) -> Result<(FieldDescriptor, &'p [String]), String> {
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
    Ok((field, rest))
}

fn parsed(field: &FieldDescriptor, value: Value) -> Result<Field, String> {
    let whole = json!({ field.name(): value });
    let message = DynamicMessage::deserialize(field.parent_message().clone(), &whole)
        .map_err(|error| format!("the value does not fit: {error}"))?;
    Ok(message.get_field(field).into_owned())
}

fn empty_element(field: &FieldDescriptor) -> Field {
    let kind = field.kind();
    match kind.as_message() {
        Some(message) => Field::Message(DynamicMessage::new(message.clone())),
        None => Field::default_value(&kind),
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::v1;
    use prost::Message;

    use super::*;
    use crate::rpc::method::Method;

    fn edited<M: Message + Default>(method: &str, reply: &M, edits: Value) -> M {
        let descriptor = method.parse::<Method>().unwrap().reply();
        let edits = Edits::read(edits.as_object().unwrap(), &descriptor).unwrap();
        let mut message = DynamicMessage::decode(descriptor, reply.encode_to_vec().as_slice()).unwrap();
        edits.apply(&mut message);
        M::decode(message.encode_to_vec().as_slice()).unwrap()
    }

    #[test]
    fn maps_numbers_lists_and_messages_are_set_and_removed() {
        let reply = v1::ControllerPublishVolumeResponse {
            publish_context: [("device".to_owned(), "/dev/a".to_owned())].into(),
        };
        let edit = json!({"publish_context.device": "/dev/b", "publish_context.example.com/x": "y"});
        let context = edited("ControllerPublishVolume", &reply, edit).publish_context;
        assert_eq!(
            (context["device"].as_str(), context["example.com/x"].as_str()),
            ("/dev/b", "y")
        );
        let edit = json!({"publish_context.device": null});
        assert!(
            edited("ControllerPublishVolume", &reply, edit)
                .publish_context
                .is_empty()
        );

        let reply = v1::NodeGetInfoResponse {
            node_id: "n".into(),
            max_volumes_per_node: 3,
            ..Default::default()
        };
        let edit = json!({"max_volumes_per_node": 1, "accessible_topology.segments.zone": "a"});
        let info = edited("NodeGetInfo", &reply, edit);
        assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("n", 1));
        assert_eq!(info.accessible_topology.unwrap().segments["zone"], "a");

        let entry = |nodes: &[&str]| v1::list_volumes_response::Entry {
            status: Some(v1::list_volumes_response::VolumeStatus {
                published_node_ids: nodes.iter().map(|node| (*node).to_owned()).collect(),
                ..Default::default()
            }),
            ..Default::default()
        };
        let reply = v1::ListVolumesResponse {
            entries: vec![entry(&["a"]), entry(&["b"])],
            ..Default::default()
        };
        let nodes = |reply: v1::ListVolumesResponse| -> Vec<Vec<String>> {
            reply
                .entries
                .into_iter()
                .map(|entry| entry.status.unwrap().published_node_ids)
                .collect()
        };
        let all = edited(
            "ListVolumes",
            &reply,
            json!({"entries.*.status.published_node_ids": ["x"]}),
        );
        assert_eq!(nodes(all), [["x"], ["x"]]);
        let second = edited(
            "ListVolumes",
            &reply,
            json!({"entries.1.status.published_node_ids.0": "y"}),
        );
        assert_eq!(nodes(second), [["a"], ["y"]]);
        let first = edited(
            "ListVolumes",
            &reply,
            json!({"entries.1": null, "entries.7": null}),
        );
        assert_eq!(nodes(first), [["a"]]);
    }

    #[test]
    fn unknown_fields_survive() {
        // Field 99 of a later version, then a known one.
        let descriptor = Method::ControllerPublishVolume.reply();
        let later = [0x9a, 0x06, 0x01, b'x'];
        let mut message = DynamicMessage::decode(descriptor.clone(), &later[..]).unwrap();
        let edit = json!({"publish_context.a": "b"});
        Edits::read(edit.as_object().unwrap(), &descriptor)
            .unwrap()
            .apply(&mut message);
        let bytes = message.encode_to_vec();
        assert!(bytes.windows(4).any(|window| window == later), "{bytes:?}");
    }

    #[test]
    fn wrong_paths_and_values_are_refused() {
        // (method, path, value, words of the reason)
        let table = [
            ("NodeGetInfo", "max_volumes", json!(1), "max_volumes_per_node"),
            ("NodeGetInfo", "max_volumes_per_node", json!("many"), "fit"),
            ("NodeGetInfo", "node_id.x", json!(1), "no fields of its own"),
            ("ListVolumes", "entries.first.volume", json!({}), "number"),
            ("ListVolumes", "entries.0.volume.size", json!(1), "capacity_bytes"),
            ("ListVolumes", "entries.*.volume.capacity_bytes", json!([]), "fit"),
            (
                "ControllerPublishVolume",
                "publish_context.a",
                json!({"b": 1}),
                "fit",
            ),
            ("ControllerUnpublishVolume", "x", json!(1), "has no fields"),
        ];
        for (method, path, value, words) in table {
            let edits_by_path = json!({ path: value });
            let reply = method.parse::<Method>().unwrap().reply();
            let (at, reason) = Edits::read(edits_by_path.as_object().unwrap(), &reply).unwrap_err();
            assert!(at == path && reason.contains(words), "{method} {path}: {reason}");
        }
    }
}
