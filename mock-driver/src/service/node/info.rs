//! NodeGetInfo and NodeGetCapabilities.

use csi_proto::v1::node_service_capability::{Rpc as RpcCapability, Type};
use csi_proto::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeServiceCapability, Topology,
};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::{Capability, Place};
use crate::rpc::method::Method;
use crate::rpc::validate::Invalid;
use crate::service::call::Rpc;

impl Rpc for NodeGetInfoRequest {
    const METHOD: Method = Method::NodeGetInfo;
    type Reply = NodeGetInfoResponse;
    type Plan = ();

    fn check(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn act((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let told = driver.told().await?;
        let limit = driver.limit_by_chance().or(told.limit).unwrap_or(0);
        let topology = Topology {
            segments: told.topology.into_iter().collect(),
        };
        Ok(NodeGetInfoResponse {
            node_id: told.id,
            max_volumes_per_node: i64::try_from(limit).unwrap_or(i64::MAX),
            accessible_topology: Some(topology).filter(|topology| !topology.segments.is_empty()),
        })
    }
}

impl Rpc for NodeGetCapabilitiesRequest {
    const METHOD: Method = Method::NodeGetCapabilities;
    type Reply = NodeGetCapabilitiesResponse;
    type Plan = ();

    fn check(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn act((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let told = |capability: Capability| match capability.place() {
            Place::Node(number) => Some(NodeServiceCapability {
                r#type: Some(Type::Rpc(RpcCapability { r#type: number })),
            }),
            Place::Service(_) | Place::Expansion(_) | Place::Controller(_) | Place::Group(_) => None,
        };
        Ok(NodeGetCapabilitiesResponse {
            capabilities: driver.offer.now().iter().filter_map(told).collect(),
        })
    }
}
