//! The Node service of a driver with a node id.

use csi_proto::v1::node_server::Node;
use csi_proto::v1::{NodeGetInfoRequest, Topology};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::service::call::Rpc;

mod health;
mod path;
mod stage_publish;
mod stats_expand;

answer_calls! {
    Node:
    NodeGetInfo: node_get_info(NodeGetInfoRequest) -> NodeGetInfoResponse,
    NodeGetCapabilities: node_get_capabilities(NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse,
    NodeStageVolume: node_stage_volume(NodeStageVolumeRequest { volume: volume_id }) -> NodeStageVolumeResponse,
    NodeUnstageVolume: node_unstage_volume(NodeUnstageVolumeRequest { volume: volume_id }) -> NodeUnstageVolumeResponse,
    NodePublishVolume: node_publish_volume(NodePublishVolumeRequest { volume: volume_id }) -> NodePublishVolumeResponse,
    NodeUnpublishVolume: node_unpublish_volume(NodeUnpublishVolumeRequest { volume: volume_id }) -> NodeUnpublishVolumeResponse,
    NodeGetVolumeStats: node_get_volume_stats(NodeGetVolumeStatsRequest { volume: volume_id }) -> NodeGetVolumeStatsResponse,
    NodeGetVolumeHealth: node_get_volume_health(NodeGetVolumeHealthRequest { volume: volume_id }) -> NodeGetVolumeHealthResponse,
    NodeGetStorageHealth: node_get_storage_health(NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse,
    NodeExpandVolume: node_expand_volume(NodeExpandVolumeRequest { volume: volume_id }) -> NodeExpandVolumeResponse,
}

impl Rpc for NodeGetInfoRequest {
    no_parameters!();

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let info = driver.info().await?;
        let limit = driver.random_limit().or(info.limit).unwrap_or(0);
        let topology = Topology {
            segments: info.topology.into_iter().collect(),
        };
        Ok(Self::Reply {
            node_id: info.id,
            max_volumes_per_node: i64::try_from(limit).unwrap_or(i64::MAX),
            accessible_topology: Some(topology).filter(|topology| !topology.segments.is_empty()),
        })
    }
}
