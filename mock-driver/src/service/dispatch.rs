//! All services of a socket: those of CSI that the process has, and gRPC's health and reflection services, so that tools
//! such as grpcurl and grpc_health_probe need neither proto file nor flag.

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
use tonic::service::{Routes, RoutesBuilder};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder as ReflectionBuilder;

use super::grpc_health::HealthService;
use super::{ControllerService, GroupService, IdentityService, NodeService, SnapshotMetadataService, legacy};
use crate::driver::Driver;
use crate::rpc::method::Method;

/// All services of a driver.
#[derive(Clone, Debug)]
pub struct Services {
    driver: Arc<Driver>,
    routes: Routes,
}

/// Services, and their names for reflection.
#[derive(Default)]
struct Offered {
    routes: RoutesBuilder,
    names: Vec<&'static str>,
}

// === impl Services ===

impl Services {
    /// The services of `driver`.
    pub fn new(driver: &Arc<Driver>) -> Self {
        let mut offered = Offered::default();
        offered.add(IdentityServer::new(IdentityService(driver.clone())));
        if driver.mode.has_array() {
            offered.add(ControllerServer::new(ControllerService(driver.clone())));
            offered.add(GroupControllerServer::new(GroupService(driver.clone())));
            offered.add(SnapshotMetadataServer::new(SnapshotMetadataService(
                driver.clone(),
            )));
        }
        if driver.node.is_some() {
            offered.add(NodeServer::new(NodeService(driver.clone())));
        }
        offered.add(HealthServer::new(HealthService(driver.clone())));
        let reflection = ReflectionBuilder::configure()
            .register_encoded_file_descriptor_set(csi_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        let reflection = offered
            .names
            .iter()
            .fold(reflection, |reflection, name| reflection.with_service_name(*name));
        offered.add(
            reflection
                .build_v1()
                .expect("the built-in descriptors must decode"),
        );
        let router = offered.routes.routes().into_axum_router().fallback(not_offered);
        Self {
            driver: driver.clone(),
            routes: Routes::from(router).prepare(),
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
        let path = request.uri().path();
        let method = Method::at(path);
        if let Some(method) = method
            && let Some(capability) = method.condition()
            && self.driver.capabilities.has(capability)
            && let Some(serve) = legacy::server(&self.driver, method)
        {
            return serve(&self.driver, request);
        }
        // The generated services return UNIMPLEMENTED without a message.
        if method.is_none() && path.starts_with("/csi.v1.") {
            tracing::warn!(path, "unknown CSI method");
            let status = Status::unimplemented(format!("{path} is an unknown method"));
            return Box::pin(async move { Ok(status.into_http()) });
        }
        let call = self.routes.call(request);
        Box::pin(async move { Ok(call.await.unwrap_or_else(|never: Infallible| match never {})) })
    }
}

// === impl Offered ===

impl Offered {
    fn add<S>(&mut self, service: S)
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes.add_service(service);
    }
}

async fn not_offered(request: http::Request<axum::body::Body>) -> http::Response<Body> {
    let service = request.uri().path().split('/').nth(1).unwrap_or_default();
    tracing::warn!(service, "call to a service that is not offered");
    Status::unimplemented(format!("service \"{service}\" is not offered by this driver")).into_http()
}
