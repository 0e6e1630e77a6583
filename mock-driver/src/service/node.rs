//! The Node service of a driver with a node id.

use std::sync::Arc;

use csi_proto::v1::node_server::Node;
use csi_proto::v1::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
};

use crate::driver::Driver;

mod expand;
mod health;
mod info;
mod inline;
mod path;
mod publish;
mod stage;
mod stats;
mod wire;

#[derive(Clone, Debug)]
pub(crate) struct NodeService(pub Arc<Driver>);

answer_calls! {
    Node for NodeService:
    node_get_info(NodeGetInfoRequest),
    node_get_capabilities(NodeGetCapabilitiesRequest),
    node_stage_volume(NodeStageVolumeRequest),
    node_unstage_volume(NodeUnstageVolumeRequest),
    node_publish_volume(NodePublishVolumeRequest),
    node_unpublish_volume(NodeUnpublishVolumeRequest),
    node_get_volume_stats(NodeGetVolumeStatsRequest),
    node_get_volume_health(NodeGetVolumeHealthRequest),
    node_get_storage_health(NodeGetStorageHealthRequest),
    node_expand_volume(NodeExpandVolumeRequest),
}
