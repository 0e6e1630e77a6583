//! A connection to a CSI driver: a channel to its socket, or its services in process.

use std::fmt::{self, Debug, Formatter};

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

/// Carries gRPC calls to a driver.
pub(crate) type CsiService = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, CallError>;

/// A call did not get through. A type of its own, as the futures of boxed errors are not `Send` for the compiler.
#[derive(Debug, thiserror::Error)]
#[error("call to the CSI driver failed")]
pub(crate) struct CallError(#[source] StdError);

/// A CSI driver, wherever it runs.
#[derive(Clone)]
pub struct DriverConnection {
    service: CsiService,
}

// === impl DriverConnection ===

impl Debug for DriverConnection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DriverConnection").finish_non_exhaustive()
    }
}

impl DriverConnection {
    /// Any service that answers gRPC calls: a [`tonic::transport::Channel`], or the generated servers in process.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
        S::Error: Into<StdError>,
        S::Future: Send + 'static,
    {
        Self {
            service: BoxCloneSyncService::new(service.map_err(|error| CallError(error.into()))),
        }
    }

    pub(crate) fn identity(&self) -> IdentityClient<CsiService> {
        IdentityClient::new(self.service.clone())
    }

    pub(crate) fn controller(&self) -> ControllerClient<CsiService> {
        ControllerClient::new(self.service.clone())
    }

    pub(crate) fn node(&self) -> NodeClient<CsiService> {
        NodeClient::new(self.service.clone())
    }

    /// The driver's name.
    ///
    /// # Errors
    /// The driver does not answer.
    pub(crate) async fn name(&self) -> Result<String, tonic::Status> {
        let info = self
            .identity()
            .get_plugin_info(v1::GetPluginInfoRequest {})
            .await?;
        Ok(info.into_inner().name)
    }
}

/// A gRPC error as grpc-go prints it, which is what Kubernetes puts into events.
pub(crate) fn describe(status: &tonic::Status) -> String {
    format!(
        "rpc error: code = {:?} desc = {}",
        status.code(),
        status.message()
    )
}

/// Whether the call has surely had no effect, or an effect that is undone: kubelet's and the provisioner's rule.
pub(crate) fn is_final(code: tonic::Code) -> bool {
    use tonic::Code;
    match code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted => false,
        Code::Ok
        | Code::Unknown
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::Internal
        | Code::DataLoss
        | Code::Unauthenticated => true,
    }
}
