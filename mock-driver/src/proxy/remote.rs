//! The proxied driver.

use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::ServiceExt;

/// A connection to the driver, opened on demand and after failures.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    channel: Channel,
    socket: Arc<PathBuf>,
}

// === impl Remote ===

impl Remote {
    pub(super) fn at(socket: PathBuf) -> Self {
        let socket = Arc::new(socket);
        let to = socket.clone();
        // Drivers ignore the authority; Go clients of a Unix socket send the same.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let to = to.clone();
                async move { UnixStream::connect(to.as_path()).await.map(TokioIo::new) }
            }),
        );
        Self { channel, socket }
    }

    /// Forwards a call. Dropping it cancels the call at the driver.
    pub(super) async fn call(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let mut channel = self.channel.clone();
        let called = match channel.ready().await {
            Ok(channel) => channel.call(request).await,
            Err(error) => Err(error),
        };
        called.map_err(|error| {
            let chain = crate::error_chain(&error);
            // The deadline of the call expired before the driver responded.
            if is_timeout(&error) {
                return Status::deadline_exceeded("the driver behind the proxy did not answer in time");
            }
            let text = format!(
                "--proxy-to: the driver at {} does not answer: {chain}",
                self.socket.display()
            );
            Status::new(Code::Unavailable, text)
        })
    }
}

fn is_timeout(error: &tonic::transport::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.is::<tonic::TimeoutExpired>() {
            return true;
        }
        source = cause.source();
    }
    false
}
