//! All services of a socket: those of CSI that the process has, and gRPC's health and reflection services, so that tools
//! such as grpcurl and grpc_health_probe need neither proto file nor flag.
//!
//! The journal also records the calls that do not reach the pipeline: unknown methods, and messages that cannot be decoded.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::middleware::{Next, from_fn_with_state};
use csi_proto::v1::controller_server::ControllerServer;
use csi_proto::v1::group_controller_server::GroupControllerServer;
use csi_proto::v1::identity_server::IdentityServer;
use csi_proto::v1::node_server::NodeServer;
use csi_proto::v1::snapshot_metadata_server::SnapshotMetadataServer;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::server::Builder as ReflectionBuilder;
use tower::ServiceExt;

use super::DriverService;
use crate::driver::Driver;
use crate::driver::error::shortened;
use crate::journal::RedactedMessage;
use crate::rpc::method::Method;
use crate::socket::ConnectionInfo;

type Request = http::Request<axum::body::Body>;

/// Routes of the CSI methods, and the service names for reflection.
struct Offered {
    methods: axum::Router,
    names: Vec<&'static str>,
}

/// The gRPC services of `driver`, as routes.
pub fn services(driver: &Arc<Driver>) -> Routes {
    let service = DriverService(driver.clone());
    let mut offered = Offered {
        methods: axum::Router::new().fallback(not_offered),
        names: vec![HealthServer::<DriverService>::NAME],
    };
    offered.add(IdentityServer::new(service.clone()));
    if driver.settings.mode.has_array() {
        offered.add(ControllerServer::new(service.clone()));
        offered.add(GroupControllerServer::new(service.clone()));
        offered.add(SnapshotMetadataServer::new(service.clone()));
    }
    if driver.node.is_some() {
        offered.add(NodeServer::new(service.clone()));
    }
    let reflection = ReflectionBuilder::configure()
        .register_encoded_file_descriptor_set(csi_proto::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
    let reflection = offered
        .names
        .iter()
        .fold(reflection, |reflection, name| reflection.with_service_name(*name));
    let reflection = reflection
        .build_v1()
        .expect("the built-in descriptors must decode");
    let methods = match &driver.journal {
        Some(_) => offered
            .methods
            .layer(from_fn_with_state(driver.clone(), record_refused)),
        None => offered.methods,
    };
    Routes::from(methods)
        .add_service(HealthServer::new(service))
        .add_service(reflection)
        .prepare()
}

/// Whether a call has reached the pipeline, which records it.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrival(Arc<AtomicBool>);

// === impl Arrival ===

impl Arrival {
    /// Notes that the pipeline records the call with these extensions.
    pub(super) fn note(extensions: &tonic::Extensions) {
        if let Some(Self(is_noted)) = extensions.get() {
            is_noted.store(true, Ordering::Relaxed);
        }
    }
}

// === impl Offered ===

impl Offered {
    /// Adds a route for each method of a service, so that [`not_offered`] answers unknown methods: a generated service answers
    /// them with UNIMPLEMENTED without a message.
    fn add<S>(&mut self, service: S)
    where
        S: Service<
                http::Request<Body>,
                Response = http::Response<Body>,
                Error = Infallible,
                Future = BoxFuture<http::Response<Body>, Infallible>,
            > + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
    {
        self.names.push(S::NAME);
        for method in Method::ALL {
            if method.service() != S::NAME {
                continue;
            }
            let service = service
                .clone()
                .map_request(|request: Request| request.map(Body::new));
            let methods = std::mem::take(&mut self.methods);
            self.methods = methods.route_service(method.path(), service);
        }
    }
}

/// Records a call that is refused before the pipeline. A pipeline whose client disconnects records that itself.
async fn record_refused(
    State(driver): State<Arc<Driver>>,
    mut request: Request,
    next: Next,
) -> axum::response::Response {
    let arrival = Arrival::default();
    request.extensions_mut().insert(arrival.clone());
    let path = request.uri().path();
    let node = Method::at(path).map(|method| driver.node_of(method));
    // The routes of known methods have static paths.
    let path = Method::at(path).map_or_else(|| path.to_owned().into(), |method| method.path().into());
    let connection = request.extensions().get::<ConnectionInfo>().cloned();
    let response = next.run(request).await;
    if let (false, Some(journal)) = (arrival.0.load(Ordering::Relaxed), &driver.journal)
        && let Some(status) = Status::from_header_map(response.headers())
    {
        let peer = connection.and_then(|connection| connection.peer);
        let node = node.unwrap_or_default();
        let mut record = journal.begin_on(node, path, peer, RedactedMessage::Unreadable);
        record.end(status, None);
    }
    response
}

async fn not_offered(request: Request) -> http::Response<Body> {
    let path = request.uri().path();
    let service = path.split('/').nth(1).unwrap_or_default();
    let reason = if path.starts_with("/csi.v1.") && Method::at(path).is_none() {
        format!("{path} is an unknown method")
    } else {
        format!("service \"{service}\" is not offered by this driver")
    };
    let reason = shortened(reason);
    tracing::warn!(reason, "call to an unknown method or service");
    Status::unimplemented(reason).into_http()
}
