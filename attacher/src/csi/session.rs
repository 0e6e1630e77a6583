//! A session: the connections to a driver, its name and its capabilities.
//!
//! Publishes have a connection of their own: a server may limit the concurrent calls of a connection
//! (SETTINGS_MAX_CONCURRENT_STREAMS, often 100 or 200), and an attach must not queue behind a thousand slow detaches. The loss
//! of either connection is the loss of both.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use csi_proto::v1::controller_client::ControllerClient;
use csi_proto::v1::controller_service_capability::{self, rpc};
use csi_proto::v1::identity_client::IdentityClient;
use csi_proto::v1::plugin_capability::{self, service};
use csi_proto::v1::{
    ControllerGetCapabilitiesRequest, GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest,
};
use http::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tonic::body::Body;
use tonic::transport::{Channel, Endpoint};
use tower::util::{MapRequest, MapResponse};
use tower::{ServiceExt as _, service_fn};

use super::code::CallError;
use super::metrics::Calls;
use super::stream::{Loss, watched};
use crate::grpc::readable;
use crate::leader_election::fenced;
use crate::model::Capabilities;

/// Opens connections to the driver.
pub trait Connect: Send + Sync + 'static {
    /// A connection to it.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Opens a connection.
    fn connect(&self) -> impl Future<Output = Result<Self::Stream, OpenError>> + Send;
}

/// The driver's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Socket(PathBuf);

/// `sun_path` without the terminating zero byte.
const LONGEST_PATH: usize = 107;

/// A channel that sends calls only while we lead, and repairs invalid statuses.
type DriverChannel = MapResponse<
    MapRequest<Channel, fn(Request<Body>) -> Request<Body>>,
    fn(Response<Body>) -> Response<Body>,
>;

/// A connected driver.
#[derive(Clone, Debug)]
pub struct Session {
    /// For ControllerPublishVolume only.
    pub(super) publishes: DriverChannel,
    others: DriverChannel,
    pub(super) calls: Calls,
    /// Name of the driver.
    pub name: Arc<str>,
    /// Its capabilities.
    pub capabilities: Capabilities,
    /// When it was opened, which identifies it.
    pub opened: Instant,
}

/// The session could not be opened.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum OpenError {
    #[error("no connection to the CSI driver at {0}")]
    Connect(PathBuf, #[source] io::Error),
    #[error("the CSI driver's socket does not speak gRPC")]
    Handshake(#[source] tonic::transport::Error),
    #[error("the CSI driver is not ready yet (Probe answered ready=false)")]
    NotReady,
    #[error("{0} failed")]
    Call(&'static str, #[source] CallError),
    #[error("the CSI driver's name is empty (GetPluginInfo)")]
    NoName,
}

const PROBE: &str = "/csi.v1.Identity/Probe";
const INFO: &str = "/csi.v1.Identity/GetPluginInfo";
/// Maximum size of a response. ListVolumes of a large array exceeds tonic's 4 MiB.
const MAX_RESPONSE: usize = 64 << 20;
/// Maximum size of a response's headers, the error message included. With a smaller one the call is reset and code and
/// message are lost.
const MAX_HEADERS: u32 = 1 << 20;

// === impl Socket ===

impl FromStr for Socket {
    type Err = String;

    fn from_str(address: &str) -> Result<Self, Self::Err> {
        let path = match address.strip_prefix("unix:") {
            Some(rest) => rest.strip_prefix("//").unwrap_or(rest),
            None => address,
        };
        if path.len() > LONGEST_PATH {
            return Err(format!(
                "the path has {} bytes, and a socket's may have {LONGEST_PATH}: mount the socket's folder at a shorter path",
                path.len()
            ));
        }
        let path = Path::new(path);
        if path.is_absolute() {
            Ok(Self(path.to_owned()))
        } else {
            Err(format!(
                "{address:?} is not the address of a Unix socket: give its absolute path, as in /run/csi/socket or \
                 unix:///run/csi/socket"
            ))
        }
    }
}

impl Connect for Socket {
    type Stream = UnixStream;

    async fn connect(&self) -> Result<UnixStream, OpenError> {
        let stream = UnixStream::connect(&self.0).await;
        stream.map_err(|source| OpenError::Connect(self.0.clone(), source))
    }
}

// === impl Session ===

impl Session {
    /// Connects and reads name and capabilities. `timeout` applies to each call.
    ///
    /// # Errors
    ///
    /// Any [`OpenError`] may be temporary, as the driver may be starting.
    pub(super) async fn open(
        driver: &impl Connect,
        timeout: Duration,
        calls: &Calls,
    ) -> Result<(Self, Loss), OpenError> {
        let loss = Loss::new();
        let publishes = driver_channel(connect(driver, &loss).await?);
        let others = driver_channel(connect(driver, &loss).await?);
        // Probes both: a server may accept only one connection.
        let mut publisher = IdentityClient::new(publishes.clone());
        call(calls, PROBE, timeout, ProbeRequest {}, |request| {
            publisher.probe(request)
        })
        .await?;
        let mut identity = IdentityClient::new(others.clone());
        let probe = call(calls, PROBE, timeout, ProbeRequest {}, |request| {
            identity.probe(request)
        });
        // An absent field means ready (CSI specification, Probe).
        let ready = probe.await?.ready.unwrap_or(true);
        tracing::trace!(
            method = PROBE,
            response = format!("ready={ready}"),
            "GRPC response"
        );
        if !ready {
            return Err(OpenError::NotReady);
        }
        let info = call(calls, INFO, timeout, GetPluginInfoRequest {}, |request| {
            identity.get_plugin_info(request)
        })
        .await?;
        let response = format!("name={} vendor_version={}", info.name, info.vendor_version);
        tracing::trace!(method = INFO, response, "GRPC response");
        if info.name.is_empty() {
            return Err(OpenError::NoName);
        }
        let name: Arc<str> = info.name.into();
        calls.serve(&name);
        let capabilities = capabilities(calls, identity, &others, timeout).await?;
        Ok((
            Self {
                publishes,
                others,
                calls: calls.clone(),
                name,
                capabilities,
                opened: tokio::time::Instant::now().into_std(),
            },
            loss,
        ))
    }

    /// A session whose calls all fail.
    #[cfg(test)]
    pub(crate) fn disconnected(name: &str) -> Self {
        let nowhere =
            service_fn(|_| std::future::ready(Err::<TokioIo<UnixStream>, _>(io::Error::other("nowhere"))));
        let channel = Endpoint::from_static("http://localhost").connect_with_connector_lazy(nowhere);
        Self {
            publishes: driver_channel(channel.clone()),
            others: driver_channel(channel),
            calls: Calls::default(),
            name: name.into(),
            capabilities: Capabilities::default(),
            opened: tokio::time::Instant::now().into_std(),
        }
    }

    /// For all other calls of the Controller service.
    pub(super) fn controller(&self) -> ControllerClient<DriverChannel> {
        ControllerClient::new(self.others.clone()).max_decoding_message_size(MAX_RESPONSE)
    }
}

async fn connect(driver: &impl Connect, loss: &Loss) -> Result<Channel, OpenError> {
    let stream = driver.connect().await?;
    // A new connection may be that of another driver, so tonic must not reconnect by itself.
    let once = Mutex::new(Some(TokioIo::new(watched(stream, loss.clone()))));
    let over = loss.clone();
    let connector = service_fn(move |_| {
        let taken = once
            .lock()
            .expect("nothing must panic while the slot is locked")
            .take();
        if taken.is_none() {
            // tonic has discarded the connection.
            over.cancel();
        }
        std::future::ready(taken.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    Endpoint::from_static("http://localhost")
        // The attacher resets each call that exceeds its deadline, and h2 regards too many resets as an attack.
        .http2_max_local_error_reset_streams(None)
        .http2_max_header_list_size(MAX_HEADERS)
        .connect_with_connector(connector)
        .await
        .map_err(OpenError::Handshake)
}

async fn capabilities(
    calls: &Calls,
    mut identity: IdentityClient<DriverChannel>,
    channel: &DriverChannel,
    timeout: Duration,
) -> Result<Capabilities, OpenError> {
    const OF_PLUGIN: &str = "/csi.v1.Identity/GetPluginCapabilities";
    const OF_CONTROLLER: &str = "/csi.v1.Controller/ControllerGetCapabilities";
    let answer = call(
        calls,
        OF_PLUGIN,
        timeout,
        GetPluginCapabilitiesRequest {},
        |request| identity.get_plugin_capabilities(request),
    )
    .await?;
    let names = answer.capabilities.iter().filter_map(|capability| {
        Some(match capability.r#type.as_ref()? {
            plugin_capability::Type::Service(service) => service.r#type().as_str_name(),
            plugin_capability::Type::VolumeExpansion(expansion) => expansion.r#type().as_str_name(),
        })
    });
    let names: Vec<_> = names.collect();
    tracing::trace!(method = OF_PLUGIN, response = names.join(", "), "GRPC response");
    if !names.contains(&service::Type::ControllerService.as_str_name()) {
        return Ok(Capabilities::default());
    }
    let mut controller = ControllerClient::new(channel.clone());
    let answer = call(
        calls,
        OF_CONTROLLER,
        timeout,
        ControllerGetCapabilitiesRequest {},
        |request| controller.controller_get_capabilities(request),
    )
    .await?;
    let names = answer.capabilities.iter().filter_map(|capability| {
        let controller_service_capability::Type::Rpc(rpc) = capability.r#type.as_ref()?;
        Some(rpc.r#type().as_str_name())
    });
    let names: Vec<_> = names.collect();
    tracing::trace!(
        method = OF_CONTROLLER,
        response = names.join(", "),
        "GRPC response"
    );
    let has = |wanted: rpc::Type| names.contains(&wanted.as_str_name());
    Ok(Capabilities {
        publish: has(rpc::Type::PublishUnpublishVolume),
        publish_readonly: has(rpc::Type::PublishReadonly),
        single_node_multi_writer: has(rpc::Type::SingleNodeMultiWriter),
        list_published: has(rpc::Type::ListVolumes) && has(rpc::Type::ListVolumesPublishedNodes),
    })
}

/// Sends a call. The caller logs its response.
async fn call<Q, A, F>(
    calls: &Calls,
    method: &'static str,
    timeout: Duration,
    message: Q,
    call: impl FnOnce(tonic::Request<Q>) -> F,
) -> Result<A, OpenError>
where
    F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
{
    tracing::trace!(method, "GRPC call");
    let request = tonic::Request::new(message);
    let result = calls.send(method, request, timeout, false, call).await;
    result.map_err(|error| {
        tracing::trace!(method, %error, "GRPC error");
        OpenError::Call(method.rsplit('/').next().unwrap_or(method), error)
    })
}

fn driver_channel(channel: Channel) -> DriverChannel {
    // A call may wait for a free stream after the check of leadership.
    let fenced: fn(Request<Body>) -> Request<Body> = |request| fenced(request).map(Body::new);
    let readable: fn(Response<Body>) -> Response<Body> = readable;
    channel.map_request(fenced).map_response(readable)
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use tokio::time::Instant;

    use super::*;
    use crate::leader_election::Leadership;

    /// The call may be queued until the driver's limit of concurrent streams allows it.
    #[tokio::test(start_paused = true)]
    async fn queued_call_is_not_sent_after_leadership_ended() {
        const WAIT: Duration = Duration::from_secs(5);
        for (leads_for, is_sent) in [(2 * WAIT, true), (WAIT / 2, false)] {
            let mut request = Request::new(Body::new(Full::new(Bytes::from_static(b"x"))));
            let leadership = Leadership::until(Instant::now() + leads_for);
            request.extensions_mut().insert(leadership);
            let request = fenced(request);
            tokio::time::sleep(WAIT).await;
            assert_eq!(request.into_body().collect().await.is_ok(), is_sent);
        }
    }

    #[test]
    fn accepts_the_go_sidecars_socket_addresses() {
        for address in [
            "/run/csi/socket",
            "unix:///run/csi/socket",
            "unix:/run/csi/socket",
        ] {
            assert_eq!(address.parse(), Ok(Socket("/run/csi/socket".into())), "{address}");
        }
        for address in [
            "",
            "csi.sock",
            "unix:csi.sock",
            "unix://csi.sock",
            "tcp://127.0.0.1:1",
            "127.0.0.1:1",
        ] {
            let error = address.parse::<Socket>().unwrap_err();
            assert!(error.contains("is not the address of a Unix socket"), "{error}");
        }
        let path = |length: usize| format!("/{}", "a".repeat(length - 1));
        assert!(path(LONGEST_PATH).parse::<Socket>().is_ok());
        let error = path(LONGEST_PATH + 1).parse::<Socket>().unwrap_err();
        assert!(error.starts_with("the path has 108 bytes"), "{error}");
    }
}
