//! The Controller service.

use std::sync::Arc;

use csi_proto::v1::controller_server::Controller;
use csi_proto::v1::controller_service_capability::{Rpc as RpcCapability, Type};
use csi_proto::v1::{
    ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse,
    ControllerGetVolumeHealthRequest, ControllerGetVolumeRequest, ControllerListVolumeHealthRequest,
    ControllerModifyVolumeRequest, ControllerPublishVolumeRequest, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest,
    DeleteVolumeRequest, GetCapacityRequest, GetSnapshotRequest, ListSnapshotsRequest, ListVolumesRequest,
    ValidateVolumeCapabilitiesRequest,
};

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

#[derive(Clone, Debug)]
pub(crate) struct ControllerService(pub Arc<Driver>);

answer_calls! {
    Controller for ControllerService:
    create_volume(CreateVolumeRequest),
    delete_volume(DeleteVolumeRequest),
    controller_publish_volume(ControllerPublishVolumeRequest),
    controller_unpublish_volume(ControllerUnpublishVolumeRequest),
    validate_volume_capabilities(ValidateVolumeCapabilitiesRequest),
    list_volumes(ListVolumesRequest),
    controller_get_capabilities(ControllerGetCapabilitiesRequest),
    controller_get_volume(ControllerGetVolumeRequest),
    controller_list_volume_health(ControllerListVolumeHealthRequest),
    controller_get_volume_health(ControllerGetVolumeHealthRequest),
    get_capacity(GetCapacityRequest),
    create_snapshot(CreateSnapshotRequest),
    delete_snapshot(DeleteSnapshotRequest),
    list_snapshots(ListSnapshotsRequest),
    get_snapshot(GetSnapshotRequest),
    controller_expand_volume(ControllerExpandVolumeRequest),
    controller_modify_volume(ControllerModifyVolumeRequest),
}

impl Rpc for ControllerGetCapabilitiesRequest {
    const METHOD: Method = Method::ControllerGetCapabilities;
    type Reply = ControllerGetCapabilitiesResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let info = |capability: Capability| {
            let ReportedIn::Controller(r#type) = capability.reported_in() else {
                return None;
            };
            let r#type = Some(Type::Rpc(RpcCapability { r#type }));
            Some(ControllerServiceCapability { r#type })
        };
        Ok(ControllerGetCapabilitiesResponse {
            capabilities: driver.capabilities.now().iter().filter_map(info).collect(),
        })
    }
}
