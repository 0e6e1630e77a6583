//! The answers that had the condition of a volume before CSI 1.13, as descriptors: what is sent like that, by
//! this driver or by the one behind the proxy, is shown like that.
//!
//! Each has the fields of today's answer under the same names and numbers, and one more.

use prost_reflect::{DescriptorPool, MessageDescriptor};
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorProto};

/// A package of their own, so that they do not stand in the way of today's.
const PACKAGE: &str = "csi.older";

/// The methods whose answers had it, and the messages.
const ANSWERS: [(&str, &str); 3] = [
    ("/csi.v1.Controller/ListVolumes", "ListVolumesResponse"),
    (
        "/csi.v1.Controller/ControllerGetVolume",
        "ControllerGetVolumeResponse",
    ),
    ("/csi.v1.Node/NodeGetVolumeStats", "NodeGetVolumeStatsResponse"),
];

/// A field: its name, whether there may be many, and what it is. They are numbered as they stand.
type Field = (&'static str, Label, Kind);

enum Kind {
    Bool,
    Text,
    /// A message, by its full name.
    Message(String),
}

/// Adds the older answers to the descriptors of today's.
pub(super) fn add_to(pool: &mut DescriptorPool) {
    let today = pool
        .get_message_by_name("csi.v1.Volume")
        .expect("CSI must have volumes");
    let file = FileDescriptorProto {
        name: Some("csi-older.proto".to_owned()),
        package: Some(PACKAGE.to_owned()),
        dependency: vec![today.parent_file().name().to_owned()],
        message_type: messages(),
        syntax: Some("proto3".to_owned()),
        ..FileDescriptorProto::default()
    };
    pool.add_file_descriptor_proto(file)
        .expect("the older answers must fit today's messages");
}

/// The answer of a method, if it is one of those.
pub(super) fn answer(pool: &DescriptorPool, path: &str) -> Option<MessageDescriptor> {
    let (_, name) = ANSWERS.iter().find(|(method, _)| *method == path)?;
    pool.get_message_by_name(&format!("{PACKAGE}.{name}"))
}

fn messages() -> Vec<DescriptorProto> {
    let ours = |name: &str| Kind::Message(format!(".{PACKAGE}.{name}"));
    let csi = |name: &str| Kind::Message(format!(".csi.v1.{name}"));
    let (one, many) = (Label::Optional, Label::Repeated);
    let volume_with_status = || {
        vec![
            ("volume", one, csi("Volume")),
            ("status", one, ours("VolumeStatus")),
        ]
    };
    vec![
        message(
            "VolumeCondition",
            vec![("abnormal", one, Kind::Bool), ("message", one, Kind::Text)],
        ),
        message(
            "VolumeStatus",
            vec![
                ("published_node_ids", many, Kind::Text),
                ("volume_condition", one, ours("VolumeCondition")),
            ],
        ),
        message("Entry", volume_with_status()),
        message(
            "ListVolumesResponse",
            vec![("entries", many, ours("Entry")), ("next_token", one, Kind::Text)],
        ),
        message("ControllerGetVolumeResponse", volume_with_status()),
        message(
            "NodeGetVolumeStatsResponse",
            vec![
                ("usage", many, csi("VolumeUsage")),
                ("volume_condition", one, ours("VolumeCondition")),
            ],
        ),
    ]
}

fn message(name: &str, fields: Vec<Field>) -> DescriptorProto {
    let numbered = (1..).zip(fields);
    let field = numbered.map(|(number, (name, label, kind))| {
        let (kind, type_name) = match kind {
            Kind::Bool => (Type::Bool, None),
            Kind::Text => (Type::String, None),
            Kind::Message(name) => (Type::Message, Some(name)),
        };
        FieldDescriptorProto {
            name: Some(name.to_owned()),
            number: Some(number),
            label: Some(label.into()),
            r#type: Some(kind.into()),
            type_name,
            ..FieldDescriptorProto::default()
        }
    });
    DescriptorProto {
        name: Some(name.to_owned()),
        field: field.collect(),
        ..DescriptorProto::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever reads today's fields in an older answer finds them where they are.
    #[test]
    fn older_answers_have_all_that_todays_have_at_the_same_place() {
        let mut pool = DescriptorPool::decode(csi_proto::FILE_DESCRIPTOR_SET).unwrap();
        add_to(&mut pool);
        let mut conditions = 0;
        for (path, _) in ANSWERS {
            let (service, name) = path.strip_prefix('/').unwrap().split_once('/').unwrap();
            let service = pool.get_service_by_name(service).unwrap();
            let today = service.methods().find(|method| method.name() == name).unwrap();
            let mut pairs = vec![(today.output(), answer(&pool, path).unwrap())];
            while let Some((today, older)) = pairs.pop() {
                for field in today.fields() {
                    let same = older.get_field(field.number()).unwrap();
                    assert_eq!(same.name(), field.name(), "{path}");
                    assert_eq!(same.cardinality(), field.cardinality(), "{path} {}", field.name());
                    if let (Some(today), Some(older)) = (field.kind().as_message(), same.kind().as_message())
                    {
                        pairs.extend((today != older).then(|| (today.clone(), older.clone())));
                    }
                }
                conditions += older
                    .fields()
                    .filter(|field| field.name() == "volume_condition")
                    .count();
            }
        }
        assert_eq!(conditions, ANSWERS.len());
        assert!(answer(&pool, "/csi.v1.Identity/Probe").is_none());
    }
}
