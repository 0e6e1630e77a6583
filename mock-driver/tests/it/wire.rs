//! The wire protocol: literal method paths, without generated clients.

use std::time::Duration;

use csi_proto::v1;
use http::uri::PathAndQuery;
use prost::Message;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::server::{Server, mk_create, mk_publish, mk_unpublish};

pub(crate) async fn call<Q, R>(channel: &Channel, path: &'static str, request: Q) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let codec: ProstCodec<Q, R> = ProstCodec::default();
    client
        .unary(Request::new(request), PathAndQuery::from_static(path), codec)
        .await
        .map(Response::into_inner)
}

#[tokio::test]
async fn every_implemented_method_is_served_under_its_csi_path() {
    let server = Server::start().await;
    let channel = server.channel().await;
    let info: v1::GetPluginInfoResponse = call(
        &channel,
        "/csi.v1.Identity/GetPluginInfo",
        v1::GetPluginInfoRequest {},
    )
    .await
    .unwrap();
    assert_eq!(info.name, "mock.csi.local");
    let path = "/csi.v1.Identity/GetPluginCapabilities";
    let _: v1::GetPluginCapabilitiesResponse = call(&channel, path, v1::GetPluginCapabilitiesRequest {})
        .await
        .unwrap();
    let _: v1::ProbeResponse = call(&channel, "/csi.v1.Identity/Probe", v1::ProbeRequest {})
        .await
        .unwrap();

    let created: v1::CreateVolumeResponse = call(&channel, "/csi.v1.Controller/CreateVolume", mk_create("a"))
        .await
        .unwrap();
    let volume = created.volume.unwrap().volume_id;
    let path = "/csi.v1.Controller/ControllerPublishVolume";
    let _: v1::ControllerPublishVolumeResponse =
        call(&channel, path, mk_publish(&volume, "node-0")).await.unwrap();
    let path = "/csi.v1.Controller/ControllerUnpublishVolume";
    let _: v1::ControllerUnpublishVolumeResponse = call(&channel, path, mk_unpublish(&volume, "node-0"))
        .await
        .unwrap();
    let list: v1::ListVolumesResponse = call(
        &channel,
        "/csi.v1.Controller/ListVolumes",
        v1::ListVolumesRequest::default(),
    )
    .await
    .unwrap();
    assert_eq!(list.entries.len(), 6);
    let path = "/csi.v1.Controller/ControllerGetCapabilities";
    let _: v1::ControllerGetCapabilitiesResponse =
        call(&channel, path, v1::ControllerGetCapabilitiesRequest {})
            .await
            .unwrap();
    let get = v1::ControllerGetVolumeRequest {
        volume_id: volume.clone(),
    };
    let _: v1::ControllerGetVolumeResponse = call(&channel, "/csi.v1.Controller/ControllerGetVolume", get)
        .await
        .unwrap();
    let validate = v1::ValidateVolumeCapabilitiesRequest {
        volume_id: volume.clone(),
        volume_capabilities: mk_create("a").volume_capabilities,
        ..Default::default()
    };
    let _: v1::ValidateVolumeCapabilitiesResponse = call(
        &channel,
        "/csi.v1.Controller/ValidateVolumeCapabilities",
        validate,
    )
    .await
    .unwrap();
    let delete = v1::DeleteVolumeRequest {
        volume_id: volume,
        ..Default::default()
    };
    let _: v1::DeleteVolumeResponse = call(&channel, "/csi.v1.Controller/DeleteVolume", delete)
        .await
        .unwrap();
}

#[tokio::test]
async fn unknown_services_are_unimplemented_by_name() {
    let server = Server::start().await;
    let channel = server.channel().await;
    let path = "/csi.v0.Controller/ListVolumes";
    let outcome: Result<v1::ListVolumesResponse, _> =
        call(&channel, path, v1::ListVolumesRequest::default()).await;
    let status = outcome.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
    assert!(status.message().contains("csi.v0.Controller"), "{status}");
}

#[tokio::test]
async fn unknown_method_is_unimplemented_with_a_message() {
    let server = Server::start().await;
    let channel = server.channel().await;
    let long = format!("/vendor.v1.{}/Start", "x".repeat(10_000)).leak();
    for path in [
        "/csi.v1.Controller/ControllerFly",
        "/csi.v1.Identity/",
        "/csi.v1.Space/Fly",
        "/vendor.v1.Copy/Start",
        long,
    ] {
        let refused = call::<_, v1::ProbeResponse>(&channel, path, v1::ProbeRequest {}).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{path}: {refused}");
        assert!((1..=4096).contains(&refused.message().len()), "{path}: {refused}");
    }
}

#[tokio::test]
async fn reflection_lists_the_services_and_describes_them() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let server = Server::start().await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let asked = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol("csi.v1.Controller".to_owned()),
    ];
    let asked = asked.map(|request| ServerReflectionRequest {
        host: String::new(),
        message_request: Some(request),
    });
    let responses = client
        .server_reflection_info(futures::stream::iter(asked))
        .await
        .unwrap();
    let responses: Vec<ServerReflectionResponse> = futures::TryStreamExt::try_collect(responses.into_inner())
        .await
        .unwrap();
    let [services, file] = &responses[..] else {
        panic!("two responses: {responses:?}");
    };
    let Some(MessageResponse::ListServicesResponse(services)) = &services.message_response else {
        panic!("{services:?}");
    };
    let mut names: Vec<_> = services
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    names.sort_unstable();
    let expected = [
        "csi.v1.Controller",
        "csi.v1.GroupController",
        "csi.v1.Identity",
        "csi.v1.SnapshotMetadata",
        "grpc.health.v1.Health",
    ];
    let listed: Vec<_> = names.iter().filter(|name| !name.contains("reflection")).collect();
    assert_eq!(
        listed,
        expected.iter().collect::<Vec<_>>(),
        "no Node service without a node"
    );
    assert!(
        matches!(&file.message_response, Some(MessageResponse::FileDescriptorResponse(files))
            if !files.file_descriptor_proto.is_empty()),
        "{file:?}"
    );
}

#[tokio::test]
async fn health_follows_readiness() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_check_response::ServingStatus;
    use tonic_health::pb::health_client::HealthClient;

    for (ready_after, status) in [
        (Duration::ZERO, ServingStatus::Serving),
        (Duration::from_secs(3600), ServingStatus::NotServing),
    ] {
        let server = Server::start_with(|_, settings| settings.config.ready_after = ready_after).await;
        let mut client = HealthClient::new(server.channel().await);
        let response = client.check(HealthCheckRequest::default()).await.unwrap();
        assert_eq!(response.into_inner().status(), status, "{ready_after:?}");
    }
}
