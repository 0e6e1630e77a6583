//! NodeGetInfo.

use csi_proto::v1::{NodeGetInfoRequest, NodeGetInfoResponse, Topology};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::validate::Invalid;
use crate::service::call::Rpc;

impl Rpc for NodeGetInfoRequest {
    type Reply = NodeGetInfoResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let info = driver.info().await?;
        let limit = driver.limit_by_chance().or(info.limit).unwrap_or(0);
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
