//! The Node service of a driver with a node id.

use csi_proto::v1::node_server::Node;
use csi_proto::v1::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetStorageHealthRequest, NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest,
    Topology,
};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::validate::Invalid;
use crate::service::call::Rpc;

mod health;
mod path;
mod stage_publish;
mod stats_expand;

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

impl Rpc for NodeGetInfoRequest {
    type Reply = NodeGetInfoResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let info = driver.info().await?;
        let limit = driver.random_limit().or(info.limit).unwrap_or(0);
        let topology = Topology {
            segments: info.topology.into_iter().collect(),
        };
        Ok(NodeGetInfoResponse {
            node_id: info.id,
            max_volumes_per_node: i64::try_from(limit).unwrap_or(i64::MAX),
            accessible_topology: Some(topology).filter(|topology| !topology.segments.is_empty()),
        })
    }
}
