//! How we talk HTTP to the API server.
//!
//! kube's ready-made client speaks HTTP/1.1 only, one connection a request in flight, without a read
//! deadline on writes and with waits of its own for 429. This one speaks HTTP/2 over few
//! connections, notices a silent network by pings, and leaves deadlines and retries to
//! [`retry`](super::retry). See docs/adr/0002-own-http-stack.md.

use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::ConfigExt;
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};

use super::{RateLimit, Requests};

/// How long a connection may be silent before we ask whether anybody is there.
const PING_AFTER: Duration = Duration::from_secs(15);
/// How long that question may stay unanswered before the connection is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a TCP connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Clients for the kinds of traffic that must not get in one another's way. A watch takes an HTTP/2
/// stream for good and, while we are slow to read it, the connection's window from everybody else.
#[derive(Clone)]
pub struct Clients {
    /// For lists and watches.
    pub watches: Client,
    /// For reads and writes of single objects.
    pub requests: Client,
    /// For whoever uses [`Clients::requests`]: the rate that watches and requests share.
    pub rate: Option<RateLimit>,
    /// What all of them asked, and were answered.
    pub counts: Requests,
}

/// The client could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The certificates or keys of the configuration are not usable.
    #[error("the TLS settings of the Kubernetes client configuration are not usable")]
    Tls(#[source] kube::Error),
    /// The credentials of the configuration are not usable.
    #[error("the credentials of the Kubernetes client configuration are not usable")]
    Credentials(#[source] kube::Error),
    /// A proxy is configured.
    #[error(
        "the Kubernetes client configuration names a proxy ({0}), which is not supported: connect directly"
    )]
    Proxy(http::Uri),
}

// === impl Clients ===

impl Clients {
    /// Makes the clients. Nothing is connected before it is used. `rate` holds for the watches; requests
    /// wait for it before their deadline begins, where they are made.
    ///
    /// # Errors
    ///
    /// When the configuration cannot be used at all. A server that cannot be reached is no error here.
    pub fn new(config: &Config, rate: Option<RateLimit>) -> Result<Self, ConnectError> {
        let counts = Requests::default();
        Ok(Self {
            watches: connect(config, rate.clone(), counts.clone())?,
            requests: connect(config, None, counts.clone())?,
            rate,
            counts,
        })
    }
}

/// A client with a connection of its own, made when it is first used. Its requests wait for `rate` and
/// are counted.
///
/// # Errors
///
/// When the configuration cannot be used at all. A server that cannot be reached is no error here.
pub fn connect(config: &Config, rate: Option<RateLimit>, counts: Requests) -> Result<Client, ConnectError> {
    if let Some(proxy) = &config.proxy_url {
        return Err(ConnectError::Proxy(proxy.clone()));
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let tls = config.rustls_client_config().map_err(ConnectError::Tls)?;
    // HTTP/1.1 stays on offer for the sake of proxies that terminate TLS and know nothing else.
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_or_http()
        .enable_all_versions()
        .wrap_connector(tcp);
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_adaptive_window(true)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(ConnectError::Credentials)?)
        .layer(config.extra_headers_layer().map_err(ConnectError::Credentials)?)
        .map_request(|mut request: http::Request<kube::client::Body>| {
            request.headers_mut().insert(USER_AGENT, user_agent());
            request
        })
        .map_err(BoxError::from)
        .service(service_fn(move |request| {
            let (http, rate, counts) = (http.clone(), rate.clone(), counts.clone());
            async move {
                if let Some(rate) = rate {
                    rate.turn().await;
                }
                counts.counted(request, |request| http.oneshot(request)).await
            }
        }));
    Ok(Client::new(service, config.default_namespace.clone()))
}

/// The API server takes the part before the slash as the manager in `managedFields`, so it must be
/// the Go sidecar's.
fn user_agent() -> HeaderValue {
    HeaderValue::from_static(concat!("csi-attacher/v", env!("CARGO_PKG_VERSION"), " (rust)"))
}
