//! NodeGetInfo and NodeGetCapabilities.

use csi_proto::v1::node_service_capability::{Rpc as RpcCapability, Type};
use csi_proto::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeServiceCapability, Topology,
};

use crate::driver::Driver;
use crate::driver::error::Error;
use crate::rpc::capabilities::{Capability, ReportedIn};
use crate::rpc::method::Method;
use crate::rpc::validate::Invalid;
use crate::service::call::Rpc;

impl Rpc for NodeGetInfoRequest {
    const METHOD: Method = Method::NodeGetInfo;
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

impl Rpc for NodeGetCapabilitiesRequest {
    const METHOD: Method = Method::NodeGetCapabilities;
    type Reply = NodeGetCapabilitiesResponse;
    type Params = ();

    fn validate(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn execute((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        let info = |capability: Capability| {
            let ReportedIn::Node(r#type) = capability.reported_in() else {
                return None;
            };
            let r#type = Some(Type::Rpc(RpcCapability { r#type }));
            Some(NodeServiceCapability { r#type })
        };
        Ok(NodeGetCapabilitiesResponse {
            capabilities: driver.capabilities.now().iter().filter_map(info).collect(),
        })
    }
}
