//! The Controller service: volumes and snapshots made, attached, detached, listed and deleted.

use std::sync::Arc;

use csi_proto::v1::controller_server::Controller;
use csi_proto::v1::controller_service_capability::{Rpc as RpcCapability, Type};
use csi_proto::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerGetVolumeHealthRequest, ControllerGetVolumeHealthResponse,
    ControllerGetVolumeRequest, ControllerGetVolumeResponse, ControllerListVolumeHealthRequest,
    ControllerListVolumeHealthResponse, ControllerModifyVolumeRequest, ControllerModifyVolumeResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest,
    CreateSnapshotResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest,
    DeleteSnapshotResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetCapacityRequest,
    GetCapacityResponse, GetSnapshotRequest, GetSnapshotResponse, ListSnapshotsRequest,
    ListSnapshotsResponse, ListVolumesRequest, ListVolumesResponse, ValidateVolumeCapabilitiesRequest,
    ValidateVolumeCapabilitiesResponse,
};
use tonic::{Request, Response, Status};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::{Capability, ReportedIn};
use crate::rpc::method::Method;
use crate::rpc::validate::Invalid;
use crate::service::call::Rpc;

mod capacity;
mod change;
mod health;
mod list;
mod publish;
pub(super) mod shape;
mod snapshot;
mod validate;
mod volume;

/// The Controller service of a driver.
#[derive(Clone, Debug)]
pub struct ControllerService(pub Arc<Driver>);

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        self.0.answer(request).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        self.0.answer(request).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        self.0.answer(request).await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_get_capabilities(
        &self,
        request: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<ControllerListVolumeHealthRequest>,
    ) -> Result<Response<ControllerListVolumeHealthResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_get_volume_health(
        &self,
        request: Request<ControllerGetVolumeHealthRequest>,
    ) -> Result<Response<ControllerGetVolumeHealthResponse>, Status> {
        self.0.answer(request).await
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        self.0.answer(request).await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        self.0.answer(request).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        self.0.answer(request).await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        self.0.answer(request).await
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        self.0.answer(request).await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        self.0.answer(request).await
    }
}

impl Rpc for ControllerGetCapabilitiesRequest {
    const METHOD: Method = Method::ControllerGetCapabilities;
    type Reply = ControllerGetCapabilitiesResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let info = |capability: Capability| match capability.place() {
            ReportedIn::Controller(number) => Some(ControllerServiceCapability {
                r#type: Some(Type::Rpc(RpcCapability { r#type: number })),
            }),
            ReportedIn::Service(_)
            | ReportedIn::Expansion(_)
            | ReportedIn::Group(_)
            | ReportedIn::Node(_) => None,
        };
        Ok(ControllerGetCapabilitiesResponse {
            capabilities: driver.capabilities.now().iter().filter_map(info).collect(),
        })
    }
}
