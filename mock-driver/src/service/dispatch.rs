//! All services on one socket: each call goes to the service its path names.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use csi_proto::v1::controller_server::ControllerServer;
use csi_proto::v1::group_controller_server::GroupControllerServer;
use csi_proto::v1::identity_server::IdentityServer;
use csi_proto::v1::node_server::NodeServer;
use csi_proto::v1::snapshot_metadata_server::SnapshotMetadataServer;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

use super::{ControllerService, GroupService, IdentityService, NodeService, SnapshotMetadataService, legacy};
use crate::driver::Driver;
use crate::method::Method;
use crate::mode::Mode;

/// Every service of a driver.
#[derive(Clone, Debug)]
pub struct Services {
    driver: Arc<Driver>,
    mode: Mode,
    identity: IdentityServer<IdentityService>,
    controller: ControllerServer<ControllerService>,
    group: GroupControllerServer<GroupService>,
    snapshot_metadata: SnapshotMetadataServer<SnapshotMetadataService>,
    /// Only for a driver that knows which node it stands on.
    node: Option<NodeServer<NodeService>>,
}

// === impl Services ===

impl Services {
    /// The services of `driver`.
    pub fn new(driver: &Arc<Driver>) -> Self {
        Self {
            driver: driver.clone(),
            mode: driver.mode,
            identity: IdentityServer::new(IdentityService(driver.clone())),
            controller: ControllerServer::new(ControllerService(driver.clone())),
            group: GroupControllerServer::new(GroupService(driver.clone())),
            snapshot_metadata: SnapshotMetadataServer::new(SnapshotMetadataService(driver.clone())),
            node: driver
                .node
                .as_ref()
                .map(|_| NodeServer::new(NodeService(driver.clone()))),
        }
    }
}

impl Service<http::Request<Body>> for Services {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    /// The generated services are always ready; the number of calls is bounded by HTTP/2 streams.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if let Some(serve) = legacy::server(&self.driver, request.uri().path()) {
            return serve(&self.driver, request);
        }
        let path = request.uri().path();
        // The generated services refuse such a call without a word.
        if path.starts_with("/csi.v1.") && Method::at(path).is_none() {
            tracing::warn!(path, "call of a method that CSI does not have");
            let status = Status::unimplemented(format!("{path} is no method of this driver"));
            return Box::pin(async move { Ok(status.into_http()) });
        }
        let service = path.split('/').nth(1).unwrap_or_default().to_owned();
        if service == IdentityServer::<IdentityService>::NAME {
            return self.identity.call(request);
        }
        if service == ControllerServer::<ControllerService>::NAME && self.mode.has_array() {
            return self.controller.call(request);
        }
        if service == GroupControllerServer::<GroupService>::NAME && self.mode.has_array() {
            return self.group.call(request);
        }
        if service == SnapshotMetadataServer::<SnapshotMetadataService>::NAME && self.mode.has_array() {
            return self.snapshot_metadata.call(request);
        }
        if service == NodeServer::<NodeService>::NAME
            && let Some(node) = &mut self.node
        {
            return node.call(request);
        }
        tracing::warn!(service, "call to a service that is not offered");
        let status = Status::unimplemented(format!("service \"{service}\" is not offered by this driver"));
        Box::pin(async move { Ok(status.into_http()) })
    }
}
