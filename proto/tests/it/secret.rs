//! Every field marked `csi_secret` is known, and its value is printed nowhere.

use std::{collections::BTreeSet, fmt::Debug};

use csi_proto::{
    FILE_DESCRIPTOR_SET, Secrets,
    secret::STRIPPED,
    v1::{
        ControllerExpandVolumeRequest, ControllerGetVolumeHealthRequest, ControllerListVolumeHealthRequest,
        ControllerModifyVolumeRequest, ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest,
        CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
        DeleteVolumeGroupSnapshotRequest, DeleteVolumeRequest, GetMetadataAllocatedRequest,
        GetMetadataDeltaRequest, GetSnapshotRequest, GetVolumeGroupSnapshotRequest, ListSnapshotsRequest,
        NodeExpandVolumeRequest, NodeGetStorageHealthRequest, NodePublishVolumeRequest,
        NodeStageVolumeRequest, Topology, ValidateVolumeCapabilitiesRequest, Volume,
    },
};
use prost_reflect::DescriptorPool;

const KEY: &str = "array-password";
const VALUE: &str = "hunter2";

/// Runs a check, generic over the message, for every message of the specification that has secrets.
macro_rules! for_each_message_with_secrets {
    ($check:ident) => {
        vec![
            $check::<CreateVolumeRequest>(),
            $check::<DeleteVolumeRequest>(),
            $check::<ControllerPublishVolumeRequest>(),
            $check::<ControllerUnpublishVolumeRequest>(),
            $check::<ValidateVolumeCapabilitiesRequest>(),
            $check::<ControllerListVolumeHealthRequest>(),
            $check::<ControllerGetVolumeHealthRequest>(),
            $check::<ControllerModifyVolumeRequest>(),
            $check::<CreateSnapshotRequest>(),
            $check::<DeleteSnapshotRequest>(),
            $check::<ListSnapshotsRequest>(),
            $check::<GetSnapshotRequest>(),
            $check::<ControllerExpandVolumeRequest>(),
            $check::<NodeStageVolumeRequest>(),
            $check::<NodePublishVolumeRequest>(),
            $check::<NodeGetStorageHealthRequest>(),
            $check::<NodeExpandVolumeRequest>(),
            $check::<CreateVolumeGroupSnapshotRequest>(),
            $check::<DeleteVolumeGroupSnapshotRequest>(),
            $check::<GetVolumeGroupSnapshotRequest>(),
            $check::<GetMetadataAllocatedRequest>(),
            $check::<GetMetadataDeltaRequest>(),
        ]
    };
}

#[test]
fn the_messages_with_secrets_are_those_of_the_specification() {
    let known: BTreeSet<String> = for_each_message_with_secrets!(secret_field_names)
        .into_iter()
        .collect();
    assert_eq!(known, marked_in_the_descriptors());
}

#[test]
fn debug_shows_secret_keys_and_no_value() {
    for_each_message_with_secrets!(assert_debug_hides_values);
}

#[test]
fn debug_shows_every_field() {
    for_each_message_with_secrets!(assert_debug_shows_fields);
}

#[test]
fn debug_is_otherwise_what_the_derive_would_print() {
    let request = ControllerPublishVolumeRequest {
        volume_id: "vol-1".into(),
        node_id: "node-1".into(),
        volume_capability: None,
        readonly: true,
        secrets: [
            ("b".to_owned(), VALUE.to_owned()),
            ("a".to_owned(), VALUE.to_owned()),
        ]
        .into(),
        volume_context: [("pool".to_owned(), "fast".to_owned())].into(),
    };
    assert_eq!(
        format!("{request:?}"),
        "ControllerPublishVolumeRequest { volume_id: \"vol-1\", node_id: \"node-1\", volume_capability: None, \
         readonly: true, secrets: {\"a\": \"***stripped***\", \"b\": \"***stripped***\"}, \
         volume_context: {\"pool\": \"fast\"} }"
    );
}

#[test]
fn stripping_leaves_the_keys() {
    for_each_message_with_secrets!(assert_strip_leaves_keys);
}

#[test]
fn a_message_without_secrets_is_left_as_it_is() {
    let mut volume = Volume {
        volume_id: "vol-1".into(),
        volume_context: [("secrets".to_owned(), "not one".to_owned())].into(),
        accessible_topology: vec![Topology {
            segments: [("zone".to_owned(), "a".to_owned())].into(),
        }],
        ..Volume::default()
    };
    let before = volume.clone();
    volume.strip_secrets();
    assert_eq!(volume, before);
    assert!(Volume::SECRET_FIELDS.is_empty());
}

fn descriptors() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the embedded descriptors must decode")
}

fn marked_in_the_descriptors() -> BTreeSet<String> {
    let pool = descriptors();
    let option = pool
        .get_extension_by_name("csi.v1.csi_secret")
        .expect("csi.proto must define csi_secret");
    pool.all_messages()
        .flat_map(|message| message.fields().collect::<Vec<_>>())
        .filter(|field| field.options().get_extension(&option).as_bool() == Some(true))
        .map(|field| field.full_name().to_owned())
        .collect()
}

fn with_secret<M: Secrets + Default>() -> M {
    let mut message = M::default();
    for (_, map) in message.secrets_mut() {
        map.insert(KEY.to_owned(), VALUE.to_owned());
    }
    message
}

/// The one secret field's full name. A message with two would need a second name here.
fn secret_field_names<M: Secrets>() -> String {
    let [name] = M::SECRET_FIELDS else {
        panic!("{}: {:?}", M::MESSAGE, M::SECRET_FIELDS)
    };
    format!("{}.{name}", M::MESSAGE)
}

fn assert_debug_hides_values<M: Secrets + Debug + Default>() {
    let printed = [
        format!("{:?}", with_secret::<M>()),
        format!("{:#?}", with_secret::<M>()),
        format!("{:?}", vec![Some(with_secret::<M>())]),
        format!("{:?}", tonic::Request::new(with_secret::<M>())),
    ];
    for text in printed {
        assert!(!text.contains(VALUE), "{}: {text}", M::MESSAGE);
        assert!(
            text.contains(KEY) && text.contains(STRIPPED),
            "{}: {text}",
            M::MESSAGE
        );
    }
}

fn assert_debug_shows_fields<M: Secrets + Debug + Default>() {
    let pool = descriptors();
    let message = pool
        .get_message_by_name(M::MESSAGE)
        .expect("MESSAGE must be the message's full name");
    let text = format!("{:?}", M::default());
    for field in message.fields() {
        assert!(
            text.contains(&format!("{}: ", field.name())),
            "{}: {text}",
            field.full_name()
        );
    }
}

fn assert_strip_leaves_keys<M: Secrets + Debug + Default>() {
    let mut message = with_secret::<M>();
    message.strip_secrets();
    let left: Vec<_> = message
        .secrets_mut()
        .map(|(field, map)| (field, map.clone()))
        .collect();
    assert_eq!(
        left,
        [("secrets", [(KEY.to_owned(), STRIPPED.to_owned())].into())],
        "{}",
        M::MESSAGE
    );
}
