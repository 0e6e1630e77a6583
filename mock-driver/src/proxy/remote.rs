//! The driver behind the proxy.

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

/// A connection to the driver, made when it is needed and again when it broke.
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
        // Drivers do not look at the authority; Go clients of a Unix socket say the same.
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(
            tower::service_fn(move |_| {
                let to = to.clone();
                async move { UnixStream::connect(to.as_path()).await.map(TokioIo::new) }
            }),
        );
        Self { channel, socket }
    }

    /// Passes a call on. Dropped, it is cancelled at the driver.
    pub(super) async fn call(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let mut channel = self.channel.clone();
        let called = match channel.ready().await {
            Ok(channel) => channel.call(request).await,
            Err(error) => Err(error),
        };
        called.map_err(|error| {
            let chain = crate::error_chain(&error);
            // The deadline that came with the call ran out before the driver answered.
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
