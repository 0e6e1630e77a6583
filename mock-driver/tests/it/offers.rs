//! Identity and capabilities, and their agreement with the served methods.

use std::time::Duration;

use csi_mock_driver::fault::{Origin, Rule};
use csi_proto::v1;
use csi_proto::v1::controller_service_capability::{Type, rpc};
use csi_proto::v1::volume_capability::AccessType;
use csi_proto::v1::volume_capability::access_mode::Mode;
use tokio::time;
use tonic::Code;

use crate::server::{DEADLINE, Server, mk_map, mk_mount};

#[tokio::test]
async fn identity_service_reports_name_and_readiness() {
    let server = Server::start().await;
    let mut identity = server.identity().await;
    let info = identity
        .get_plugin_info(v1::GetPluginInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(info.name, "mock.csi.local");
    assert_eq!(info.vendor_version, env!("CARGO_PKG_VERSION"));
    let probe = identity.probe(v1::ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(probe.ready, Some(true));
    let plugin = identity
        .get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {})
        .await
        .unwrap();
    assert_eq!(
        plugin.into_inner().capabilities.len(),
        6,
        "all services, both topologies and online expansion"
    );
}

#[tokio::test]
async fn capabilities_match_the_served_methods() {
    let server = Server::start().await;
    let mut client = server.controller().await;
    let reply = client
        .controller_get_capabilities(v1::ControllerGetCapabilitiesRequest {})
        .await
        .unwrap();
    let mut offered: Vec<rpc::Type> = reply
        .into_inner()
        .capabilities
        .into_iter()
        .map(|capability| match capability.r#type {
            Some(Type::Rpc(rpc)) => rpc.r#type(),
            None => rpc::Type::Unknown,
        })
        .collect();
    offered.sort_by_key(|capability| i32::from(*capability));
    assert_eq!(
        offered,
        [
            rpc::Type::CreateDeleteVolume,
            rpc::Type::PublishUnpublishVolume,
            rpc::Type::ListVolumes,
            rpc::Type::GetCapacity,
            rpc::Type::CreateDeleteSnapshot,
            rpc::Type::ListSnapshots,
            rpc::Type::CloneVolume,
            rpc::Type::PublishReadonly,
            rpc::Type::ExpandVolume,
            rpc::Type::ListVolumesPublishedNodes,
            rpc::Type::GetVolume,
            rpc::Type::SingleNodeMultiWriter,
            rpc::Type::ModifyVolume,
            rpc::Type::GetSnapshot,
            rpc::Type::GetVolumeHealth,
            rpc::Type::ListVolumeHealth,
        ]
    );
}

#[tokio::test]
async fn node_service_is_served_if_the_node_is_known() {
    let server = Server::start().await;
    let unknown = server
        .node()
        .await
        .node_get_info(v1::NodeGetInfoRequest {})
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);

    let server = Server::start_with(|_, settings| {
        settings.node_id = Some("node-2".into());
        settings.array.attach_limit = Some(7);
    })
    .await;
    let mut node = server.node().await;
    let info = node
        .node_get_info(v1::NodeGetInfoRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!((info.node_id.as_str(), info.max_volumes_per_node), ("node-2", 7));
    let stage = node
        .node_stage_volume(v1::NodeStageVolumeRequest::default())
        .await
        .unwrap_err();
    assert_eq!(
        stage.code(),
        Code::InvalidArgument,
        "it is served, and the request is empty"
    );
}

#[tokio::test]
async fn disabled_capability_is_neither_reported_nor_served() {
    let is_controller_service = |capability: &v1::PluginCapability| {
        use v1::plugin_capability::{Type, service};
        matches!(&capability.r#type, Some(Type::Service(service)) if service.r#type() == service::Type::ControllerService)
    };
    let offer = "-CONTROLLER_SERVICE,-PUBLISH_UNPUBLISH_VOLUME,-LIST_VOLUMES_PUBLISHED_NODES";
    let server = Server::start_with(|_, settings| {
        settings.capabilities = offer.parse().unwrap();
        settings.initial_volumes = 1;
    })
    .await;
    let plugin = server
        .identity()
        .await
        .get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {})
        .await
        .unwrap();
    let services = plugin.into_inner().capabilities;
    assert!(!services.iter().any(is_controller_service), "{services:?}");
    let mut client = server.controller().await;
    let refused = client
        .controller_publish_volume(v1::ControllerPublishVolumeRequest::default())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
    let list = client
        .list_volumes(v1::ListVolumesRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(list.entries.len(), 1);
    assert_eq!(list.entries[0].status, None, "published nodes are not reported");
}

#[tokio::test]
async fn probe_is_not_ready_until_ready_after_and_fails_by_fault_rule() {
    let server = Server::start_with(|_, settings| {
        settings.config.ready_after = Duration::from_secs(5);
    })
    .await;
    let mut identity = server.identity().await;
    let first = identity.probe(v1::ProbeRequest {}).await.unwrap().into_inner();
    assert_eq!(first.ready, Some(false));
    let ready = async {
        while identity
            .probe(v1::ProbeRequest {})
            .await
            .unwrap()
            .into_inner()
            .ready
            != Some(true)
        {
            time::sleep(Duration::from_millis(5)).await;
        }
    };
    time::timeout(DEADLINE, ready).await.unwrap();
    let rule = "[{id: broken, match: {method: Probe}, action: {code: FAILED_PRECONDITION}}]";
    let rules = Rule::read_list(rule).unwrap();
    server.driver().faults.load(Origin::Admin, rules).unwrap();
    let broken = server
        .identity()
        .await
        .probe(v1::ProbeRequest {})
        .await
        .unwrap_err();
    assert_eq!(broken.code(), Code::FailedPrecondition);
}

/// Stages, publishes, and publishes inline with the capability.
async fn uses(server: &Server, capability: &v1::VolumeCapability) -> [Result<(), tonic::Status>; 3] {
    let (staging, target) = (server.path("staging"), server.path("target"));
    let mut node = server.node().await;
    let stage = v1::NodeStageVolumeRequest {
        volume_id: "vol-0".to_owned(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability.clone()),
        ..Default::default()
    };
    let publish = |context| v1::NodePublishVolumeRequest {
        volume_id: "vol-0".to_owned(),
        target_path: target.display().to_string(),
        staging_target_path: staging.display().to_string(),
        volume_capability: Some(capability.clone()),
        volume_context: context,
        ..Default::default()
    };
    let inline = mk_map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]);
    [
        node.node_stage_volume(stage).await.map(drop),
        node.node_publish_volume(publish(mk_map(&[]))).await.map(drop),
        node.node_publish_volume(publish(inline)).await.map(drop),
    ]
}

#[tokio::test]
async fn unsupported_volume_capabilities_are_refused_by_every_call() {
    let newer = mk_mount("", Mode::SingleNodeMultiWriter);
    let grouped = v1::VolumeCapability {
        access_type: Some(AccessType::Mount(v1::volume_capability::MountVolume {
            volume_mount_group: "7".to_owned(),
            ..Default::default()
        })),
        ..mk_mount("", Mode::SingleNodeWriter)
    };
    // (disabled capabilities, volume capability, whether it is confirmed, field and capability in the message)
    let table = [
        (
            "-SINGLE_NODE_MULTI_WRITER,-NODE_SINGLE_NODE_MULTI_WRITER",
            &newer,
            false,
            [
                "volume_capability: ",
                "does not have NODE_SINGLE_NODE_MULTI_WRITER",
            ],
        ),
        (
            "-NODE_SINGLE_NODE_MULTI_WRITER",
            &newer,
            true,
            [
                "volume_capability: ",
                "does not have NODE_SINGLE_NODE_MULTI_WRITER",
            ],
        ),
        (
            "-NODE_VOLUME_MOUNT_GROUP",
            &grouped,
            true,
            [
                "volume_capability.mount.volume_mount_group: ",
                "does not have NODE_VOLUME_MOUNT_GROUP",
            ],
        ),
    ];
    for (offer, capability, is_confirmed, words) in table {
        let server = Server::start_with(|_, settings| {
            settings.capabilities = offer.parse().unwrap();
            settings.node_id = Some("node-0".into());
            settings.initial_volumes = 1;
        })
        .await;
        let question = v1::ValidateVolumeCapabilitiesRequest {
            volume_id: "vol-0".to_owned(),
            volume_capabilities: vec![capability.clone()],
            ..Default::default()
        };
        let mut controller = server.controller().await;
        let response = controller.validate_volume_capabilities(question).await.unwrap();
        let response = response.into_inner();
        assert_eq!(
            response.confirmed.is_some(),
            is_confirmed,
            "{offer}: {response:?}"
        );
        assert_eq!(
            response.message.contains("SINGLE_NODE_MULTI_WRITER"),
            !is_confirmed,
            "{response:?}"
        );

        for refused in uses(&server, capability).await {
            let status = refused.expect_err(offer);
            assert_eq!(status.code(), Code::InvalidArgument, "{offer}: {status}");
            for word in words {
                assert!(
                    status.message().contains(word),
                    "{offer}: {word:?} is not in {status}"
                );
            }
        }
        server.stop().await;
    }
}
