//! The wire: method paths, and the numbers that a field or a name must never take. That every number is right is
//! held by the comparison with the official descriptors in `e2e`.

use std::convert::Infallible;

use csi_proto::{
    FILE_DESCRIPTOR_SET,
    registration::{InfoRequest, registration_client::RegistrationClient},
    v1::{
        ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, GetPluginInfoRequest,
        NodeGetInfoRequest, ProbeResponse, VolumeCapability, controller_client::ControllerClient,
        controller_service_capability::rpc, identity_client::IdentityClient, list_volumes_response,
        node_client::NodeClient, volume_capability,
    },
};
use prost::Message as _;
use prost_reflect::DescriptorPool;
use tonic::Code;

/// A channel that reaches nobody: the status message of each call is the path that was called.
async fn echo_path(
    request: http::Request<tonic::body::Body>,
) -> Result<http::Response<tonic::body::Body>, Infallible> {
    Ok(tonic::Status::not_found(request.uri().path()).into_http())
}

#[tokio::test]
async fn clients_call_the_paths_of_the_specification() {
    let channel = tower::service_fn(echo_path);
    let mut identity = IdentityClient::new(channel);
    let mut controller = ControllerClient::new(channel);
    let mut node = NodeClient::new(channel);
    let mut registration = RegistrationClient::new(channel);
    let calls = [
        (
            identity.get_plugin_info(GetPluginInfoRequest {}).await.err(),
            "/csi.v1.Identity/GetPluginInfo",
        ),
        (
            controller
                .controller_publish_volume(ControllerPublishVolumeRequest::default())
                .await
                .err(),
            "/csi.v1.Controller/ControllerPublishVolume",
        ),
        (
            controller
                .controller_unpublish_volume(ControllerUnpublishVolumeRequest::default())
                .await
                .err(),
            "/csi.v1.Controller/ControllerUnpublishVolume",
        ),
        (
            node.node_get_info(NodeGetInfoRequest {}).await.err(),
            "/csi.v1.Node/NodeGetInfo",
        ),
        (
            registration.get_info(InfoRequest {}).await.err(),
            "/pluginregistration.Registration/GetInfo",
        ),
    ];
    for (status, path) in calls {
        let status = status.unwrap();
        assert_eq!((status.code(), status.message()), (Code::NotFound, path));
    }
}

#[test]
fn a_publish_request_has_the_bytes_of_the_specification() {
    let request = ControllerPublishVolumeRequest {
        volume_id: "v".into(),
        node_id: "n".into(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(volume_capability::AccessMode {
                mode: volume_capability::access_mode::Mode::MultiNodeMultiWriter.into(),
            }),
            access_type: Some(volume_capability::AccessType::Mount(
                volume_capability::MountVolume {
                    fs_type: "x".into(),
                    ..Default::default()
                },
            )),
        }),
        readonly: true,
        secrets: [("k".to_owned(), "s".to_owned())].into(),
        volume_context: [("c".to_owned(), "d".to_owned())].into(),
    };
    // Tag = number << 3 | wire type (0 varint, 2 length-delimited).
    let expected = [
        &b"\x0a\x01v"[..],                            // 1: volume_id
        b"\x12\x01n",                                 // 2: node_id
        b"\x1a\x09\x12\x03\x0a\x01x\x1a\x02\x08\x05", // 3: capability {2: mount {1: "x"}, 3: access_mode {1: 5}}
        b"\x20\x01",                                  // 4: readonly
        b"\x2a\x06\x0a\x01k\x12\x01s",                // 5: secrets
        b"\x32\x06\x0a\x01c\x12\x01d",                // 6: volume_context
    ]
    .concat();
    assert_eq!(request.encode_to_vec(), expected);
}

#[test]
fn a_wrapped_bool_tells_absent_from_false() {
    let cases: [(&[u8], Option<bool>); 3] = [
        (b"", None),
        (b"\x0a\x00", Some(false)),
        (b"\x0a\x02\x08\x01", Some(true)),
    ];
    for (bytes, ready) in cases {
        assert_eq!(ProbeResponse::decode(bytes).unwrap().ready, ready);
    }
}

#[test]
fn volume_condition_of_an_older_driver_is_read() {
    // VolumeStatus of a driver before 1.13: 1: "n", 2: VolumeCondition {1: true, 2: "bad"}.
    let status = b"\x0a\x01n\x12\x07\x08\x01\x12\x03bad";
    let decoded = list_volumes_response::VolumeStatus::decode(&status[..]).unwrap();
    assert_eq!(decoded.published_node_ids, ["n"]);
    assert_eq!(decoded.volume_condition.unwrap().message, "bad");
}

#[test]
fn messages_that_had_a_volume_condition_have_it_under_its_number() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    for message in [
        "csi.v1.ListVolumesResponse.VolumeStatus",
        "csi.v1.ControllerGetVolumeResponse.VolumeStatus",
        "csi.v1.NodeGetVolumeStatsResponse",
    ] {
        let field = pool.get_message_by_name(message).unwrap().get_field(2).unwrap();
        assert_eq!(field.name(), "volume_condition", "{message}");
    }
}

#[test]
fn numbers_of_removed_capabilities_stay_reserved() {
    let pool = DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap();
    for (capability, number) in [
        ("csi.v1.ControllerServiceCapability.RPC.Type", 11),
        ("csi.v1.NodeServiceCapability.RPC.Type", 4),
    ] {
        let reserved: Vec<_> = pool
            .get_enum_by_name(capability)
            .unwrap()
            .reserved_ranges()
            .flatten()
            .collect();
        assert_eq!(reserved, [number], "{capability}");
    }
}

#[test]
fn a_capability_of_an_older_driver_is_no_error() {
    assert_eq!(rpc::Type::try_from(10), Ok(rpc::Type::ListVolumesPublishedNodes));
    assert!(rpc::Type::try_from(11).is_err());
    let capability = csi_proto::v1::controller_service_capability::Rpc { r#type: 11 };
    let bytes = capability.encode_to_vec();
    assert_eq!(
        csi_proto::v1::controller_service_capability::Rpc::decode(&bytes[..]).unwrap(),
        capability
    );
}
