//! The Controller service.

use csi_proto::v1::controller_server::Controller;
use csi_proto::v1::{
    ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerGetVolumeHealthRequest,
    ControllerGetVolumeRequest, ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest,
    ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, CreateSnapshotRequest,
    CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest, GetSnapshotRequest,
    ListSnapshotsRequest, ListVolumesRequest, ValidateVolumeCapabilitiesRequest,
};

mod change;
mod publish;
mod query;
pub(super) mod shape;
mod snapshot;
mod validate;
mod volume;

answer_calls! {
    Controller:
    CreateVolume: create_volume(CreateVolumeRequest { name: name }),
    DeleteVolume: delete_volume(DeleteVolumeRequest { volume: volume_id }),
    ControllerPublishVolume: controller_publish_volume(ControllerPublishVolumeRequest { volume: volume_id, node: node_id }),
    ControllerUnpublishVolume: controller_unpublish_volume(ControllerUnpublishVolumeRequest { volume: volume_id, node: node_id }),
    ValidateVolumeCapabilities: validate_volume_capabilities(ValidateVolumeCapabilitiesRequest { volume: volume_id }),
    ListVolumes: list_volumes(ListVolumesRequest),
    ControllerGetCapabilities: controller_get_capabilities(ControllerGetCapabilitiesRequest),
    ControllerGetVolume: controller_get_volume(ControllerGetVolumeRequest { volume: volume_id }),
    ControllerListVolumeHealth: controller_list_volume_health(ControllerListVolumeHealthRequest),
    ControllerGetVolumeHealth: controller_get_volume_health(ControllerGetVolumeHealthRequest { volume: volume_id }),
    GetCapacity: get_capacity(GetCapacityRequest),
    CreateSnapshot: create_snapshot(CreateSnapshotRequest { volume: source_volume_id, name: name }),
    DeleteSnapshot: delete_snapshot(DeleteSnapshotRequest),
    ListSnapshots: list_snapshots(ListSnapshotsRequest { volume: source_volume_id }),
    GetSnapshot: get_snapshot(GetSnapshotRequest),
    ControllerExpandVolume: controller_expand_volume(ControllerExpandVolumeRequest { volume: volume_id }),
    ControllerModifyVolume: controller_modify_volume(ControllerModifyVolumeRequest { volume: volume_id }),
}
