//! Edits of a reply, applied to the message itself so that unknown fields survive.
//!
//! A path has the field names of the proto file, the keys of map entries, and the index of list entries or `*` for all:
//! `volume.capacity_bytes`, `publish_context.device`, `entries.*.status.published_node_ids`. Path and value are checked
//! against the reply's type when the rule is parsed.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, MapKey, MessageDescriptor, ReflectMessage, Value as Field,
};
use serde_json::{Map, Value, json};

use super::field_path::{self, Target};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Edits(Vec<Edit>);

#[derive(Clone, Debug, PartialEq)]
struct Edit {
    path: Vec<String>,
    /// `None` removes the field.
    value: Option<Field>,
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
        let read = |(path, value): (&String, &Value)| {
            let parts = field_path::parts(path);
            let target = field_path::check(reply, &parts);
            let value = target.and_then(|target| match value.is_null() {
                true => Ok(None),
                false => parsed(&target, value),
            });
            match value {
                Ok(value) => Ok(Edit { path: parts, value }),
                Err(reason) => Err((path.clone(), reason)),
            }
        };
        edits_by_path.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Applies the edits. Paths to absent entries, such as the third entry of two, have no effect.
    pub(crate) fn apply(&self, reply: &mut DynamicMessage) {
        for Edit { path, value } in &self.0 {
            set(reply, path, value.as_ref());
        }
    }
}

fn set(message: &mut DynamicMessage, path: &[String], value: Option<&Field>) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    let Some(field) = message.descriptor().get_field_by_name(first) else {
        return;
    };
    match value {
        Some(value) if rest.is_empty() => message.set_field(&field, value.clone()),
        None if rest.is_empty() => message.clear_field(&field),
        None if !message.has_field(&field) => {}
        value => {
            let field = message.get_field_mut(&field);
            if let Some(map) = field.as_map_mut() {
                let key = MapKey::String(rest.join("."));
                match value {
                    Some(value) => drop(map.insert(key, value.clone())),
                    None => drop(map.remove(&key)),
                }
            } else if let Some(list) = field.as_list_mut() {
                set_elements(list, rest, value);
            } else if let Some(inner) = field.as_message_mut() {
                set(inner, rest, value);
            }
        }
    }
}

fn set_elements(list: &mut Vec<Field>, path: &[String], value: Option<&Field>) {
    let (which, rest) = (path[0].parse::<usize>().ok(), &path[1..]);
    if rest.is_empty() && value.is_none() {
        match which {
            None => list.clear(),
            Some(number) if number < list.len() => drop(list.remove(number)),
            Some(_) => {}
        }
        return;
    }
    let elements = list.iter_mut().enumerate();
    for (_, element) in elements.filter(|(number, _)| which.is_none_or(|which| which == *number)) {
        match value {
            Some(value) if rest.is_empty() => *element = value.clone(),
            value => {
                if let Some(inner) = element.as_message_mut() {
                    set(inner, rest, value);
                }
            }
        }
    }
}

fn parsed(target: &Target, value: &Value) -> Result<Option<Field>, String> {
    let whole = |field: &FieldDescriptor, value: Value| {
        let whole = json!({ field.name(): value });
        let message = DynamicMessage::deserialize(field.parent_message().clone(), &whole)
            .map_err(|error| format!("the value does not fit: {error}"))?;
        Ok::<_, String>(message.get_field(field).into_owned())
    };
    Ok(match target {
        Target::Field(field) => Some(whole(field, value.clone())?),
        Target::Entry(field, key) => {
            let map = whole(field, json!({ key: value }))?;
            let key = MapKey::String(key.clone());
            map.as_map().and_then(|map| map.get(&key).cloned())
        }
        Target::Element(field) => {
            let list = whole(field, json!([value]))?;
            list.as_list().and_then(|list| list.first().cloned())
        }
    })
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
