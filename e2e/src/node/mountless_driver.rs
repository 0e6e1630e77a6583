//! The Node service of a driver that does not mount, in process, for scenarios that end at the attachment. A mock driver
//! without ControllerPublish would attach volumes when it mounts them, which would disturb some scenarios.

use csi_proto::v1;
use csi_proto::v1::identity_server::{Identity, IdentityServer};
use csi_proto::v1::node_server::{Node, NodeServer};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

#[derive(Clone)]
struct Plugin {
    name: String,
    node_id: String,
}

/// The services of the driver `name` on the node `node_id`.
pub(super) fn driver_without_mounts(name: &str, node_id: &str) -> Routes {
    let plugin = Plugin {
        name: name.to_owned(),
        node_id: node_id.to_owned(),
    };
    Routes::new(IdentityServer::new(plugin.clone())).add_service(NodeServer::new(plugin))
}

// === impl Plugin ===

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<v1::GetPluginInfoRequest>,
    ) -> Result<Response<v1::GetPluginInfoResponse>, Status> {
        Ok(Response::new(v1::GetPluginInfoResponse {
            name: self.name.clone(),
            ..v1::GetPluginInfoResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl Node for Plugin {
    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        Ok(Response::new(v1::NodeGetInfoResponse {
            node_id: self.node_id.clone(),
            ..v1::NodeGetInfoResponse::default()
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        Ok(Response::new(v1::NodeGetCapabilitiesResponse::default()))
    }

    async fn node_publish_volume(
        &self,
        _: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        _: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        Ok(Response::new(v1::NodeUnpublishVolumeResponse {}))
    }
}
