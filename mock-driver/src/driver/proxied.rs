//! The driver behind `--proxy-to`, as the admin API sees it.

use std::path::Path;
use std::time::Duration;

use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::{ProbeRequest, ProbeResponse};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time;
use tonic::Status;
use tonic::transport::Endpoint;

use super::Driver;

/// Where no driver can listen: of a replay, whose rule `departure` answers what the stubs do not.
pub(crate) const NO_DRIVER: &str = "/dev/null/csi.sock";

const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

// === impl Driver ===

impl Driver {
    /// The response to Probe of the driver behind this proxy; `None` for a driver that is no proxy, and for a replay.
    pub(crate) async fn probe_proxied(&self) -> Option<Result<ProbeResponse, Status>> {
        let to = self
            .settings
            .proxy_to
            .as_ref()
            .filter(|to| *to != Path::new(NO_DRIVER))?;
        let probed = time::timeout(PROBE_TIMEOUT, probe(to)).await;
        Some(probed.unwrap_or_else(|_| Err(Status::deadline_exceeded("no response"))))
    }
}

async fn probe(to: &Path) -> Result<ProbeResponse, Status> {
    let to = to.to_owned();
    let connect = tower::service_fn(move |_| {
        let to = to.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(to).await?)) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(connect);
    let reply = IdentityClient::new(channel).probe(ProbeRequest {}).await?;
    Ok(reply.into_inner())
}
