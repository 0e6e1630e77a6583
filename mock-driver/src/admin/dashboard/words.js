// Words of CSI and gRPC.

export const CODES = ["OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
  "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"];

export const METHODS = ["GetPluginInfo", "GetPluginCapabilities", "Probe", "CreateVolume", "DeleteVolume", "ControllerPublishVolume",
  "ControllerUnpublishVolume", "ValidateVolumeCapabilities", "ListVolumes", "ControllerListVolumeHealth",
  "ControllerGetVolumeHealth", "GetCapacity", "ControllerGetCapabilities", "CreateSnapshot", "DeleteSnapshot", "ListSnapshots",
  "GetSnapshot", "ControllerExpandVolume", "ControllerGetVolume", "ControllerModifyVolume", "GroupControllerGetCapabilities",
  "CreateVolumeGroupSnapshot", "DeleteVolumeGroupSnapshot", "GetVolumeGroupSnapshot", "GetMetadataAllocated", "GetMetadataDelta",
  "NodeStageVolume", "NodeUnstageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeGetVolumeStats", "NodeGetVolumeHealth",
  "NodeGetStorageHealth", "NodeExpandVolume", "NodeGetCapabilities", "NodeGetInfo"];
