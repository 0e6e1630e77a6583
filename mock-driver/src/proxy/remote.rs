use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::time;
use tokio_util::io::InspectReader;
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower::ServiceExt;

use crate::socket::SocketControl;
use crate::socket::authority::MAX_HEADER_LIST;

/// Time in which the errors of the calls that were running when the driver went away reach their clients.
const LAST_ERRORS: Duration = Duration::from_millis(50);

/// A connection to the driver, opened on demand and after failures.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    channel: Channel,
    socket: Arc<PathBuf>,
}

/// A connection to the driver. When it ends, the proxy closes the connections of its clients, which would see the end of
/// the driver without a proxy, too: sidecars exit when they lose their driver.
struct DriverConnection {
    clients: Arc<SocketControl>,
    socket: Arc<PathBuf>,
}

// === impl DriverConnection ===

impl Drop for DriverConnection {
    fn drop(&mut self) {
        // The runtime is gone if the proxy itself ends.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let (clients, socket) = (self.clients.take_all(), self.socket.clone());
        runtime.spawn(async move {
            time::sleep(LAST_ERRORS).await;
            for client in &clients {
                client.cut();
            }
            let connections = clients.len();
            tracing::info!(driver = %socket.display(), connections, "connection to the driver lost: closed those of clients");
        });
    }
}

// === impl Remote ===

impl Remote {
    /// The driver at a socket, whose clients' connections are those of `clients`.
    pub(super) fn at(socket: PathBuf, clients: Arc<SocketControl>) -> Self {
        let socket = Arc::new(socket);
        let to = socket.clone();
        // Drivers ignore the authority; Go clients of a Unix socket send the same.
        let channel = Endpoint::from_static("http://localhost")
            .http2_max_header_list_size(MAX_HEADER_LIST)
            .connect_with_connector_lazy(tower::service_fn(move |_| {
                let (socket, clients) = (to.clone(), clients.clone());
                async move {
                    let stream = UnixStream::connect(socket.as_path()).await?;
                    let connection = DriverConnection { clients, socket };
                    let stream = InspectReader::new(stream, move |_: &[u8]| {
                        let _ends_with_the_stream = &connection;
                    });
                    Ok::<_, std::io::Error>(TokioIo::new(stream))
                }
            }));
        Self { channel, socket }
    }

    /// For calls of the proxy's own.
    pub(super) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Forwards a call. Dropping it cancels the call at the driver.
    pub(super) async fn call(&self, request: http::Request<Body>) -> Result<http::Response<Body>, Status> {
        let mut channel = self.channel.clone();
        let called = match channel.ready().await {
            Ok(channel) => channel.call(request).await,
            Err(error) => Err(error),
        };
        called.map_err(|error| {
            // The deadline of the call expired before the driver responded.
            if find::<tonic::TimeoutExpired>(&error).is_some() {
                return Status::deadline_exceeded("the driver behind the proxy did not answer in time");
            }
            if is_reset(&error) {
                return Status::from_error(error.into());
            }
            let text = format!(
                "--proxy-to: the driver at {} does not answer: {}",
                self.socket.display(),
                crate::error_chain(&error)
            );
            Status::new(Code::Unavailable, text)
        })
    }
}

pub(super) fn is_reset(error: &(dyn Error + 'static)) -> bool {
    find::<h2::Error>(error).is_some_and(|error| error.is_reset() && error.is_remote())
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    std::iter::successors(Some(error), |cause| (*cause).source()).find_map(|cause| cause.downcast_ref())
}
