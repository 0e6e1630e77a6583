use csi_proto::v1::controller_server::Controller;

mod change;
mod publish;
mod query;
pub(super) mod shape;
mod snapshot;
mod validate;
mod volume;

answer_calls! {
    Controller:
    CreateVolume: create_volume(CreateVolumeRequest { name: name }) -> CreateVolumeResponse,
    DeleteVolume: delete_volume(DeleteVolumeRequest { volume: volume_id }) -> DeleteVolumeResponse,
    ControllerPublishVolume: controller_publish_volume(ControllerPublishVolumeRequest { volume: volume_id, node: node_id }) -> ControllerPublishVolumeResponse,
    ControllerUnpublishVolume: controller_unpublish_volume(ControllerUnpublishVolumeRequest { volume: volume_id, node: node_id }) -> ControllerUnpublishVolumeResponse,
    ValidateVolumeCapabilities: validate_volume_capabilities(ValidateVolumeCapabilitiesRequest { volume: volume_id }) -> ValidateVolumeCapabilitiesResponse,
    ListVolumes: list_volumes(ListVolumesRequest) -> ListVolumesResponse,
    ControllerGetCapabilities: controller_get_capabilities(ControllerGetCapabilitiesRequest) -> ControllerGetCapabilitiesResponse,
    ControllerGetVolume: controller_get_volume(ControllerGetVolumeRequest { volume: volume_id }) -> ControllerGetVolumeResponse,
    ControllerListVolumeHealth: controller_list_volume_health(ControllerListVolumeHealthRequest) -> ControllerListVolumeHealthResponse,
    ControllerGetVolumeHealth: controller_get_volume_health(ControllerGetVolumeHealthRequest { volume: volume_id }) -> ControllerGetVolumeHealthResponse,
    GetCapacity: get_capacity(GetCapacityRequest) -> GetCapacityResponse,
    CreateSnapshot: create_snapshot(CreateSnapshotRequest { volume: source_volume_id, name: name }) -> CreateSnapshotResponse,
    DeleteSnapshot: delete_snapshot(DeleteSnapshotRequest) -> DeleteSnapshotResponse,
    ListSnapshots: list_snapshots(ListSnapshotsRequest { volume: source_volume_id }) -> ListSnapshotsResponse,
    GetSnapshot: get_snapshot(GetSnapshotRequest) -> GetSnapshotResponse,
    ControllerExpandVolume: controller_expand_volume(ControllerExpandVolumeRequest { volume: volume_id }) -> ControllerExpandVolumeResponse,
    ControllerModifyVolume: controller_modify_volume(ControllerModifyVolumeRequest { volume: volume_id }) -> ControllerModifyVolumeResponse,
}
