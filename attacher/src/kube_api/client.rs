//! How we talk HTTP to the API server.
//!
//! kube's ready-made client speaks HTTP/1.1 only, one connection a request in flight, without a read
//! deadline on writes and with waits of its own for 429. This one speaks HTTP/2 over few
//! connections, notices a silent network by pings, and leaves deadlines and retries to
//! [`retry`](super::retry). See docs/adr/0002-own-http-stack.md.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::middleware::{BaseUriLayer, ExtraHeadersLayer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tower::{BoxError, ServiceBuilder, service_fn};

use super::credentials::{Credentials, CredentialsError};
use super::metrics::is_watch;
use super::request_limiter::Priority;
use super::tls::{self, Identity, TlsError};
use super::{RateLimit, Requests, attempt};
use crate::leader_election::Fenced;
use crate::report::address;

/// How long a connection may be silent before we ask whether anybody is there.
const PING_AFTER: Duration = Duration::from_secs(15);
/// How long that question may stay unanswered before the connection is given up.
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a TCP connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the beginning of an answer may take, and the rest of it unless it is a watch's. A connection that
/// answers pings may lead to a proxy that has lost the API server, which itself gives up a request after a minute.
/// Reads and writes of single objects have shorter deadlines where they are made. The wait for the rate limit comes
/// before, so that a list does not lose its token to this timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

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

/// The way to the API server, and what lets us in. A clone shares the credentials.
#[derive(Clone)]
pub struct Access(Arc<Way>);

struct Way {
    base: BaseUriLayer,
    headers: ExtraHeadersLayer,
    credentials: Credentials,
    tls: ClientConfig,
    server_name: Option<ServerName<'static>>,
    namespace: String,
}

type Http = legacy::Client<HttpsConnector<HttpConnector>, Fenced<Body>>;

/// The connections of one client.
struct Connections {
    access: Access,
    rate: Option<RateLimit>,
    counts: Requests,
    /// Those in use, and whose certificate they were made with if a plugin gave us one. Who we are is a
    /// connection's: when that changes, the next request goes over a new one.
    current: Mutex<(Option<Arc<Identity>>, Http)>,
}

/// The body of an answer: read already, or a watch's.
type Answer<B> = Either<Full<Bytes>, B>;

/// A request got no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    #[error(transparent)]
    Lost(#[from] legacy::Error),
    #[error("the answer was cut off")]
    CutOff(#[source] BoxError),
    #[error("no answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Late(#[from] Elapsed),
}

/// The API server cannot be talked to at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The certificates or keys of the configuration are not usable.
    #[error("the TLS settings of the Kubernetes client configuration are not usable")]
    Tls(#[from] TlsError),
    /// The credentials of the configuration are not usable.
    #[error("the credentials of the Kubernetes client configuration are not usable")]
    Credentials(#[from] CredentialsError),
    /// Whom the configuration wants us to act as cannot be told.
    #[error("the user whom the Kubernetes client configuration impersonates is not usable")]
    Impersonation(#[source] kube::Error),
    /// A proxy is configured.
    #[error(
        "the Kubernetes client configuration names a proxy ({0}), which is not supported: connect directly"
    )]
    Proxy(String),
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
        let access = Access::new(config)?;
        Ok(Self {
            watches: access.connect(rate.clone(), counts.clone()),
            requests: access.connect(None, counts.clone()),
            rate,
            counts,
        })
    }
}

// === impl Access ===

impl Access {
    /// Takes up a configuration.
    ///
    /// # Errors
    ///
    /// When it cannot be used at all. A server that cannot be reached is no error here.
    pub fn new(config: &Config) -> Result<Self, ConnectError> {
        if let Some(proxy) = &config.proxy_url {
            return Err(ConnectError::Proxy(address(&proxy.to_string())));
        }
        Ok(Self(Arc::new(Way {
            base: config.base_uri_layer(),
            headers: config
                .extra_headers_layer()
                .map_err(ConnectError::Impersonation)?,
            credentials: Credentials::new(&config.auth_info)?,
            tls: tls::settings(config)?,
            server_name: tls::server_name(config)?,
            namespace: config.default_namespace.clone(),
        })))
    }

    /// Has credentials ready before they are needed. Only an exec plugin makes this wait, maybe for a person
    /// who is to log in, which takes longer than a request may.
    ///
    /// # Errors
    ///
    /// The plugin gave none.
    ///
    /// # Cancellation
    ///
    /// A plugin that is running goes on, and the first request gets its answer.
    pub async fn log_in(&self) -> Result<(), ConnectError> {
        self.0.credentials.pass().await?;
        Ok(())
    }

    /// A client with a connection of its own, made when it is first used. Its requests wait for `rate` and
    /// are counted.
    pub fn connect(&self, rate: Option<RateLimit>, counts: Requests) -> Client {
        let connections = Arc::new(Connections {
            access: self.clone(),
            rate,
            counts,
            current: Mutex::new((None, self.http(None))),
        });
        let service = ServiceBuilder::new()
            .layer(self.0.base.clone())
            .layer(self.0.headers.clone())
            .map_request(|mut request: Request<Body>| {
                request.headers_mut().insert(USER_AGENT, user_agent());
                request
            })
            .service(service_fn(move |request| connections.clone().send(request)));
        Client::new(service, self.0.namespace.clone())
    }

    fn http(&self, identity: Option<&Arc<Identity>>) -> Http {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = self.0.tls.clone();
        let tls = match identity {
            Some(identity) => tls::showing(tls, identity),
            None => tls,
        };
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let builder = match &self.0.server_name {
            Some(name) => builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone())),
            None => builder,
        };
        // HTTP/1.1 stays on offer for the sake of proxies that terminate TLS and know nothing else.
        let connector = builder.enable_all_versions().wrap_connector(tcp);
        legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(PING_AFTER)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_keep_alive_while_idle(true)
            .build(connector)
    }
}

// === impl Connections ===

impl Connections {
    async fn send(
        self: Arc<Self>,
        mut request: Request<Body>,
    ) -> Result<Response<Answer<Incoming>>, BoxError> {
        // The pages of a list are one request to the limit, as client-go has no pages for what a cache serves.
        if let Some(rate) = &self.rate
            && !is_next_page(request.uri())
        {
            // Nothing works before the caches are synced.
            rate.acquire(Priority::High).await;
        }
        let credentials = &self.access.0.credentials;
        let pass = credentials.pass().await?;
        if let Some(authorization) = pass.authorization.clone() {
            request.headers_mut().insert(AUTHORIZATION, authorization);
        }
        let http = self.made_with(pass.identity.as_ref());
        let is_watch = is_watch(request.uri());
        let answer = self
            .counts
            .counted(request, |request| {
                attempt::sent(request, async |request| {
                    Ok::<_, Unanswered>(timeout(ANSWER_TIMEOUT, http.request(request)).await??)
                })
            })
            .await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            credentials.refused(&pass).await;
        }
        Ok(complete(is_watch, answer).await?)
    }

    fn made_with(&self, identity: Option<&Arc<Identity>>) -> Http {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (with, http) = &mut *current;
        if with.as_ref().map(Arc::as_ptr) != identity.map(Arc::as_ptr) {
            *http = self.access.http(identity);
            *with = identity.cloned();
        }
        http.clone()
    }
}

/// The answer with its whole body, unless it is a watch's, which has no end.
pub(super) async fn complete<B>(
    is_watch: bool,
    answer: Response<B>,
) -> Result<Response<Answer<B>>, Unanswered>
where
    B: hyper::body::Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if is_watch {
        return Ok(answer.map(Either::Right));
    }
    let (head, body) = answer.into_parts();
    let body = timeout(ANSWER_TIMEOUT, body.collect()).await?;
    let body = body.map_err(|error| Unanswered::CutOff(error.into()))?;
    Ok(Response::from_parts(
        head,
        Either::Left(Full::new(body.to_bytes())),
    ))
}

fn is_next_page(uri: &http::Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with("continue="))
}

/// The API server takes the part before the slash as the manager in `managedFields`, so it must be
/// the Go sidecar's.
fn user_agent() -> HeaderValue {
    HeaderValue::from_static(concat!("csi-attacher/v", env!("CARGO_PKG_VERSION"), " (rust)"))
}

#[cfg(test)]
mod tests;
