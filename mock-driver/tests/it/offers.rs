//! What the driver says it is and can do, and that it does no more and no less.

use std::time::Duration;

use csi_mock_driver::readiness::Ready;
use csi_proto::v1;
use csi_proto::v1::controller_service_capability::{Type, rpc};
use tokio::time;
use tonic::Code;

use crate::server::{DEADLINE, Server};

#[tokio::test]
async fn identity_is_told_and_ready() {
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
async fn capabilities_are_what_is_served() {
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
async fn node_service_is_there_when_the_node_is_known() {
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
        "it is served, and nothing was asked"
    );
}

#[tokio::test]
async fn a_capability_that_is_taken_away_is_neither_told_nor_served() {
    let is_controller_service = |capability: &v1::PluginCapability| {
        use v1::plugin_capability::{Type, service};
        matches!(&capability.r#type, Some(Type::Service(told)) if told.r#type() == service::Type::ControllerService)
    };
    let offer = "-CONTROLLER_SERVICE,-PUBLISH_UNPUBLISH_VOLUME,-LIST_VOLUMES_PUBLISHED_NODES";
    let server = Server::start_with(|_, settings| {
        settings.offer = offer.parse().unwrap();
        settings.premade = 1;
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
    assert_eq!(list.entries[0].status, None, "where it is, nobody says");
}

#[tokio::test]
async fn probe_says_not_yet_for_a_time_and_fails_on_demand() {
    let server = Server::start_with(|_, settings| {
        settings.conduct.ready_after = Duration::from_millis(200);
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
    server.driver().readiness().set(Ready::Broken);
    let broken = server
        .identity()
        .await
        .probe(v1::ProbeRequest {})
        .await
        .unwrap_err();
    assert_eq!(broken.code(), Code::FailedPrecondition);
}
