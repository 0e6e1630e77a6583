//! The Node service of a driver with a node id.

use csi_proto::v1::node_server::Node;
use csi_proto::v1::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};

mod expand;
mod health;
mod info;
mod inline;
mod path;
mod publish;
mod stage;
mod stats;
mod wire;

answer_calls! {
    Node:
    NodeGetInfo: node_get_info(NodeGetInfoRequest),
    NodeGetCapabilities: node_get_capabilities(NodeGetCapabilitiesRequest),
    NodeStageVolume: node_stage_volume(NodeStageVolumeRequest { volume: volume_id }),
    NodeUnstageVolume: node_unstage_volume(NodeUnstageVolumeRequest { volume: volume_id }),
    NodePublishVolume: node_publish_volume(NodePublishVolumeRequest { volume: volume_id }),
    NodeUnpublishVolume: node_unpublish_volume(NodeUnpublishVolumeRequest { volume: volume_id }),
    NodeGetVolumeStats: node_get_volume_stats(NodeGetVolumeStatsRequest { volume: volume_id }),
    NodeGetVolumeHealth: node_get_volume_health(NodeGetVolumeHealthRequest { volume: volume_id }),
    NodeGetStorageHealth: node_get_storage_health(NodeGetStorageHealthRequest),
    NodeExpandVolume: node_expand_volume(NodeExpandVolumeRequest { volume: volume_id }),
}
