//! The Node service of a driver that was told which node it stands on. It says so, and how many
//! volumes the node takes; staging and mounting are not offered.

use std::sync::Arc;

use csi_proto::v1::node_server::Node;
use csi_proto::v1::node_service_capability::{Rpc as RpcCapability, Type};
use csi_proto::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, NodeGetStorageHealthRequest,
    NodeGetStorageHealthResponse, NodeGetVolumeHealthRequest, NodeGetVolumeHealthResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse,
    NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use tonic::{Request, Response, Status};

use crate::call::Rpc;
use crate::driver::Driver;
use crate::error::Error;
use crate::method::Method;
use crate::offer::{Capability, Place};
use crate::request::Invalid;

/// The Node service of a driver.
#[derive(Clone, Debug)]
pub struct NodeService(pub Arc<Driver>);

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_get_info(
        &self,
        request: Request<NodeGetInfoRequest>,
    ) -> Result<Response<NodeGetInfoResponse>, Status> {
        self.0.answer(request).await
    }

    async fn node_get_capabilities(
        &self,
        request: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        self.0.answer(request).await
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodeStageVolume", request)
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodeUnstageVolume", request)
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodePublishVolume", request)
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodeUnpublishVolume", request)
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodeGetVolumeStats", request)
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Result<Response<NodeGetVolumeHealthResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodeGetVolumeHealth", request)
    }

    async fn node_get_storage_health(
        &self,
        request: Request<NodeGetStorageHealthRequest>,
    ) -> Result<Response<NodeGetStorageHealthResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodeGetStorageHealth", request)
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        self.0.refuse("/csi.v1.Node/NodeExpandVolume", request)
    }
}

impl Rpc for NodeGetInfoRequest {
    const METHOD: Method = Method::NodeGetInfo;
    type Reply = NodeGetInfoResponse;
    type Plan = ();

    fn check(&self) -> Result<(), Invalid> {
        Ok(())
    }

    async fn act((): (), driver: &Driver) -> Result<Self::Reply, Error> {
        // Served only by a driver that has a node id.
        let node_id = driver.node_id.clone().ok_or(Error::Broken)?;
        let limit = driver.attach_limit.unwrap_or(0);
        Ok(NodeGetInfoResponse {
            node_id,
            max_volumes_per_node: i64::try_from(limit).unwrap_or(i64::MAX),
            accessible_topology: None,
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
