//! A connection to a CSI driver: a channel to its socket, or its services in process.

use std::fmt::{self, Debug, Formatter};
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt, service_fn};

/// Timeout of a call, as of kubelet and the provisioner.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// Carries gRPC calls to a driver.
pub(crate) type CsiService = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, CallError>;

/// A call failed in the transport. A separate type, because the compiler does not accept futures with boxed errors as
/// `Send`.
#[derive(Debug, thiserror::Error)]
#[error("call to the CSI driver failed")]
pub(crate) struct CallError(#[source] StdError);

/// A CSI driver in this process or behind a socket.
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
    /// Any gRPC service: a [`tonic::transport::Channel`], or the generated servers in process. After two minutes a call ends
    /// with DEADLINE_EXCEEDED, and the driver sees a cancellation: unlike kubelet's, the request has no `grpc-timeout`.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
        S::Error: Into<StdError>,
        S::Future: Send + 'static,
    {
        let limited = service_fn(move |request| {
            let call = service.clone().oneshot(request);
            async move {
                match timeout(CALL_TIMEOUT, call).await {
                    Ok(response) => response.map_err(|error| CallError(error.into())),
                    Err(_) => Ok(Status::deadline_exceeded("context deadline exceeded").into_http()),
                }
            }
        });
        Self {
            service: BoxCloneSyncService::new(limited),
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
    /// The call failed.
    pub(crate) async fn name(&self) -> Result<String, tonic::Status> {
        let info = self
            .identity()
            .get_plugin_info(v1::GetPluginInfoRequest {})
            .await?;
        Ok(info.into_inner().name)
    }
}

/// A gRPC error in grpc-go's format, which Kubernetes uses in events.
pub(crate) fn describe(status: &tonic::Status) -> String {
    format!(
        "rpc error: code = {:?} desc = {}",
        status.code(),
        status.message()
    )
}

/// Whether the error is final, that is, the operation is certainly not in progress and had no lasting effect: the rule
/// of kubelet and the external-provisioner.
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hanging_call_ends_at_its_deadline() {
        let hangs = service_fn(|_| pending::<Result<http::Response<Body>, Infallible>>());
        let status = DriverConnection::new(hangs).name().await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }
}
