//! Connections to the API server, over the network or in process.

use std::time::Duration;

use http::uri::Scheme;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Bytes;
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::Config;
use kube::client::{Body, ConfigExt};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceExt as _};

use super::ConnectError;
use crate::leader_election::Fenced;

/// Interval of HTTP/2 pings.
const PING_INTERVAL: Duration = Duration::from_secs(15);
/// Timeout of a ping; then the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle time before TCP keepalive probes, and their interval, as in Go's dialer. HTTP/1.1 has no pings.
pub(super) const TCP_KEEPALIVE: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection, or a pool of them.
pub(super) type Http = BoxCloneSyncService<Request<Fenced<Body>>, Response<ResponseBody>, BoxError>;
pub(super) type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// HTTP over TCP and TLS.
pub(super) fn network(tls: ClientConfig, server_name: Option<ServerName<'static>>) -> Http {
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let builder = match server_name {
        Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name)),
        None => builder,
    };
    // Proxies that terminate TLS may support only HTTP/1.1.
    let connector = builder.enable_all_versions().wrap_connector(tcp());
    let client: legacy::Client<_, Fenced<Body>> = legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector);
    boxed(client)
}

pub(super) fn tcp() -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(TCP_KEEPALIVE));
    tcp.set_keepalive_interval(Some(TCP_KEEPALIVE));
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp
}

pub(super) fn boxed<S, B>(service: S) -> Http
where
    S: Service<Request<Fenced<Body>>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: hyper::body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    BoxCloneSyncService::new(
        service
            .map_response(|response| response.map(|body| body.map_err(Into::into).boxed_unsync()))
            .map_err(Into::into),
    )
}

pub(super) fn tls(config: &Config) -> Result<ClientConfig, ConnectError> {
    if config.cluster_url.scheme() == Some(&Scheme::HTTP) {
        // The system may have no root certificates.
        let builder = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
        return Ok(builder.with_no_client_auth());
    }
    config.rustls_client_config().map_err(ConnectError::Tls)
}

pub(super) fn server_name(config: &Config) -> Result<Option<ServerName<'static>>, ConnectError> {
    let name = config.tls_server_name.clone().filter(|name| !name.is_empty());
    name.map(|name| {
        ServerName::try_from(name.clone()).map_err(|source| ConnectError::ServerName(name, source))
    })
    .transpose()
}
