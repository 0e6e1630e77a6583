//! The GroupController service: snapshots of several volumes at one moment.

use std::sync::Arc;

use csi_proto::v1::group_controller_server::GroupController;
use csi_proto::v1::group_controller_service_capability::{Rpc as RpcCapability, Type};
use csi_proto::v1::{
    CreateVolumeGroupSnapshotRequest, CreateVolumeGroupSnapshotResponse, DeleteVolumeGroupSnapshotRequest,
    DeleteVolumeGroupSnapshotResponse, GetVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotResponse,
    GroupControllerGetCapabilitiesRequest, GroupControllerGetCapabilitiesResponse,
    GroupControllerServiceCapability,
};
use tonic::{Request, Response, Status};

use crate::call::Rpc;
use crate::driver::Driver;
use crate::error::Error;
use crate::method::Method;
use crate::offer::{Capability, Place};
use crate::request::Invalid;

/// The GroupController service of a driver.
#[derive(Clone, Debug)]
pub struct GroupService(pub Arc<Driver>);

#[tonic::async_trait]
impl GroupController for GroupService {
    async fn group_controller_get_capabilities(
        &self,
        request: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Result<Response<GroupControllerGetCapabilitiesResponse>, Status> {
        self.0.answer(request).await
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Result<Response<CreateVolumeGroupSnapshotResponse>, Status> {
        self.0.refuse(Method::CreateVolumeGroupSnapshot.path(), request)
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Result<Response<DeleteVolumeGroupSnapshotResponse>, Status> {
        self.0.refuse(Method::DeleteVolumeGroupSnapshot.path(), request)
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Result<Response<GetVolumeGroupSnapshotResponse>, Status> {
        self.0.refuse(Method::GetVolumeGroupSnapshot.path(), request)
    }
}

impl Rpc for GroupControllerGetCapabilitiesRequest {
    const METHOD: Method = Method::GroupControllerGetCapabilities;
    type Reply = GroupControllerGetCapabilitiesResponse;
    type Plan = ();

    fn check(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn act((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let told = |capability: Capability| match capability.place() {
            Place::Group(number) => Some(GroupControllerServiceCapability {
                r#type: Some(Type::Rpc(RpcCapability { r#type: number })),
            }),
            Place::Service(_) | Place::Expansion(_) | Place::Controller(_) | Place::Node(_) => None,
        };
        Ok(GroupControllerGetCapabilitiesResponse {
            capabilities: driver.offer.now().iter().filter_map(told).collect(),
        })
    }
}
