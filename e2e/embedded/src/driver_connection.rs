//! A connection to a CSI driver: a channel to its socket, or its services in process. As with grpc-go, each call sends the
//! time that is left until its deadline.

use std::fmt::{self, Debug, Formatter};
use std::time::Duration;

use csi_proto::v1;
use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::node_client::NodeClient;
use http::HeaderValue;
use tokio::time::{Instant, sleep_until};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt, service_fn};

/// gRPC's header with the time until the deadline.
const GRPC_TIMEOUT: &str = "grpc-timeout";

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

/// Calls a CSI driver until a deadline.
#[derive(Clone)]
pub(crate) struct DriverClient {
    service: CsiService,
}

// === impl DriverConnection ===

impl Debug for DriverConnection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("DriverConnection").finish_non_exhaustive()
    }
}

impl DriverConnection {
    /// Any gRPC service: a [`tonic::transport::Channel`], or the generated servers in process.
    pub fn new<S>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>> + Clone + Send + Sync + 'static,
        S::Error: Into<StdError>,
        S::Future: Send + 'static,
    {
        let service = service.map_err(|error| CallError(error.into()));
        Self {
            service: BoxCloneSyncService::new(service),
        }
    }

    /// A client whose calls have the same deadline, like calls with one Go context. At the deadline, a running call ends
    /// with DEADLINE_EXCEEDED, and the driver sees a cancellation.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> DriverClient {
        let (service, deadline) = (self.service.clone(), Instant::now() + timeout);
        let limited = service_fn(move |mut request: http::Request<Body>| {
            let left = deadline.saturating_duration_since(Instant::now());
            request.headers_mut().insert(GRPC_TIMEOUT, encode_timeout(left));
            let call = service.clone().oneshot(request);
            async move {
                tokio::select! {
                    biased;
                    () = sleep_until(deadline) => Ok(Status::deadline_exceeded("context deadline exceeded").into_http()),
                    response = call => response,
                }
            }
        });
        DriverClient {
            service: BoxCloneSyncService::new(limited),
        }
    }
}

// === impl DriverClient ===

impl DriverClient {
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

// === functions ===

/// The value of the header, in milliseconds. Rounded up as in grpc-go, so that the driver's deadline is not before the
/// client's.
fn encode_timeout(left: Duration) -> HeaderValue {
    let milliseconds = left.as_nanos().div_ceil(1_000_000);
    HeaderValue::try_from(format!("{milliseconds}m")).expect("digits must be a valid header value")
}

/// A gRPC error in grpc-go's format, which Kubernetes uses in events.
pub(crate) fn describe(status: &tonic::Status) -> String {
    // Go spells one code differently.
    let code = format!("{:?}", status.code()).replace("Cancelled", "Canceled");
    format!("rpc error: code = {code} desc = {}", status.message())
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
    use std::sync::{Arc, Mutex};

    use tokio::time::sleep;

    use super::*;

    #[test]
    fn codes_have_go_names() {
        for (status, text) in [
            (
                tonic::Status::cancelled("x"),
                "rpc error: code = Canceled desc = x",
            ),
            (
                tonic::Status::not_found("x"),
                "rpc error: code = NotFound desc = x",
            ),
        ] {
            assert_eq!(describe(&status), text);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_share_a_deadline_which_the_driver_gets() {
        let sent = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&sent);
        let hangs = service_fn(move |request: http::Request<Body>| {
            let timeout = request.headers()[GRPC_TIMEOUT].to_str().unwrap().to_owned();
            recorded.lock().unwrap().push(timeout);
            pending::<Result<http::Response<Body>, Infallible>>()
        });
        let started = Instant::now();
        let client = DriverConnection::new(hangs).with_timeout(Duration::from_secs(120));
        sleep(Duration::from_millis(500)).await;
        for call in ["first", "after the deadline"] {
            let status = client.name().await.unwrap_err();
            assert_eq!(
                describe(&status),
                "rpc error: code = DeadlineExceeded desc = context deadline exceeded"
            );
            assert_eq!(started.elapsed(), Duration::from_secs(120), "{call}");
            assert_eq!(*sent.lock().unwrap(), ["119500m"], "{call}");
        }
    }

    #[test]
    fn timeout_is_rounded_up_to_milliseconds() {
        for (left, expected) in [
            (0, "0m"),
            (1, "1m"),
            (1_000_000, "1m"),
            (119_999_000_001, "120000m"),
        ] {
            assert_eq!(encode_timeout(Duration::from_nanos(left)), expected);
        }
    }
}
