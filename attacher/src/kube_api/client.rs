//! HTTP client of the API server.
//!
//! kube's `Client::try_from` supports only HTTP/1.1, with a connection per request in flight, no read deadline on writes and its
//! own waits for 429. This one uses HTTP/2 on few connections, detects a dead network by pings, and leaves deadlines and retries
//! to [`retry`](super::retry). See docs/adr/0002-own-http-stack.md.

mod credentials;
mod transport;

use std::sync::Arc;
use std::time::Duration;

use http::header::USER_AGENT;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use kube::client::middleware::{BaseUriLayer, ExtraHeadersLayer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use rustls::pki_types::InvalidDnsNameError;
use tokio::time::timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder, ServiceExt as _, service_fn};

use self::credentials::Credentials;
pub use self::credentials::CredentialsError;

use self::transport::{Http, ResponseBody, boxed, network, server_name, tls};
use super::metrics::{Outcome, is_watch};
use super::request_limiter::Priority;
use super::{RateLimit, Requests, status};
use crate::leader_election::{Fenced, fenced};
use crate::report::address;

/// Timeout of a response's headers and, unless it is a watch, of its body. A connection that answers pings may lead to a proxy
/// without API server; the API server's own timeout is a minute. Reads and writes of single objects have shorter deadlines. The
/// wait for the rate limit comes before, so that a list does not lose its token.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);

/// Clients with separate connections: a watch that is read slowly uses up its connection's flow-control window.
#[derive(Clone)]
pub(crate) struct Clients {
    /// For lists and watches.
    pub(crate) watches: Client,
    /// For reads and writes of single objects. kube's client buffers requests and does not return response headers.
    pub(crate) requests: ApiService,
    /// For Events, over the connection of [`Clients::requests`].
    pub(crate) events: Client,
    /// The rate limit that watches and requests share; users of `Clients::requests` apply it.
    pub(crate) rate: Option<RateLimit>,
    /// Metrics of all of them.
    pub(crate) counts: Requests,
    /// For clients with connections of their own.
    pub(crate) access: Access,
}

/// The API server's address and the credentials for it. A clone shares the credentials.
#[derive(Clone)]
pub struct Access(Arc<Settings>);

struct Settings {
    /// Host and port, for errors.
    server: Arc<str>,
    base: BaseUriLayer,
    headers: ExtraHeadersLayer,
    credentials: Credentials,
    namespace: String,
    transport: Box<dyn Fn() -> Http + Send + Sync>,
}

/// A client without kube's decoding. Writes of a leader have its [`Leadership`](crate::leader_election::Leadership) among their
/// extensions.
#[derive(Clone)]
pub(crate) struct ApiService {
    /// Host and port, for errors.
    pub(crate) server: Arc<str>,
    pub(crate) http: BoxCloneSyncService<Request<Body>, Response<ResponseBody>, BoxError>,
}

struct Connections {
    server: Arc<str>,
    rate: Option<RateLimit>,
    counts: Requests,
    http: Http,
}

/// A request without a complete response.
#[derive(Debug, thiserror::Error)]
enum Unanswered {
    #[error("the connection to the API server at {0} failed")]
    Lost(Arc<str>, #[source] BoxError),
    #[error("the response of the API server at {0} was cut off")]
    CutOff(Arc<str>, #[source] BoxError),
    #[error("no answer of the API server at {0} within {limit} s", limit = RESPONSE_TIMEOUT.as_secs())]
    Late(Arc<str>),
}

/// The client configuration is unusable.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum ConnectError {
    #[error("the TLS settings of the Kubernetes client configuration are not usable")]
    Tls(#[source] kube::Error),
    #[error("tls-server-name {0:?} is not a name")]
    ServerName(String, #[source] InvalidDnsNameError),
    #[error("the credentials of the Kubernetes client configuration are not usable")]
    Credentials(#[from] CredentialsError),
    #[error("the user whom the Kubernetes client configuration impersonates is not usable")]
    Impersonation(#[source] kube::Error),
    #[error(
        "the Kubernetes client configuration names a proxy ({0}), which is not supported: connect directly"
    )]
    Proxy(String),
}

// === impl Clients ===

impl Clients {
    /// Clients that connect with their first request. Watches wait for `rate`; requests wait for it before their deadline
    /// begins.
    pub(crate) fn new(access: &Access, rate: Option<RateLimit>) -> Self {
        let counts = Requests::default();
        let requests = access.service(None, counts.clone());
        Self {
            watches: access.connect(rate.clone(), counts.clone()),
            events: Client::new(requests.http.clone(), access.0.namespace.clone()),
            requests,
            rate,
            counts,
            access: access.clone(),
        }
    }
}

// === impl Access ===

impl Access {
    /// Reads the credentials. An exec plugin runs here, and again when its token expires.
    ///
    /// # Errors
    ///
    /// If the configuration is unusable. An unreachable server is no error.
    pub fn new(config: &Config) -> Result<Self, ConnectError> {
        if let Some(proxy) = &config.proxy_url {
            return Err(ConnectError::Proxy(address(&proxy.to_string())));
        }
        let mut config = config.clone();
        credentials::leave_out_empty(&mut config.auth_info);
        let (tls, server_name) = (tls(&config)?, server_name(&config)?);
        Self::over(&config, move || network(tls.clone(), server_name.clone()))
    }

    /// An API server in this process, such as that of a simulation.
    ///
    /// # Errors
    ///
    /// None with these settings.
    pub fn in_process<S, B>(service: S) -> Result<Self, ConnectError>
    where
        S: Service<Request<Fenced<Body>>, Response = Response<B>> + Clone + Send + Sync + 'static,
        S::Error: Into<BoxError>,
        S::Future: Send + 'static,
        B: hyper::body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let config = Config::new(http::Uri::from_static("http://localhost"));
        Self::over(&config, move || boxed(service.clone()))
    }

    fn over(
        config: &Config,
        transport: impl Fn() -> Http + Send + Sync + 'static,
    ) -> Result<Self, ConnectError> {
        let url = &config.cluster_url;
        Ok(Self(Arc::new(Settings {
            server: url
                .authority()
                .map_or_else(|| url.to_string(), |at| address(at.as_str()))
                .into(),
            base: config.base_uri_layer(),
            headers: config
                .extra_headers_layer()
                .map_err(ConnectError::Impersonation)?,
            credentials: Credentials::read(config)?,
            namespace: config.default_namespace.clone(),
            transport: Box::new(transport),
        })))
    }

    pub(super) fn server(&self) -> &str {
        &self.0.server
    }

    /// A client with its own connection. Its requests wait for `rate`.
    pub(crate) fn connect(&self, rate: Option<RateLimit>, counts: Requests) -> Client {
        Client::new(self.service(rate, counts).http, self.0.namespace.clone())
    }

    pub(crate) fn service(&self, rate: Option<RateLimit>, counts: Requests) -> ApiService {
        let connections = Arc::new(Connections {
            server: self.0.server.clone(),
            rate,
            counts,
            http: (self.0.transport)(),
        });
        let send = service_fn(move |request| connections.clone().send(request));
        let access = self.clone();
        let authorized = service_fn(move |request| {
            let (access, send) = (access.clone(), send.clone());
            async move { access.0.credentials.send(send, request).await }
        });
        let service = ServiceBuilder::new()
            .layer(self.0.base.clone())
            .layer(self.0.headers.clone())
            .map_request(|mut request: Request<Body>| {
                request.headers_mut().insert(USER_AGENT, user_agent());
                request
            })
            .map_err(credentials::without_plugin_output)
            .service(authorized);
        ApiService {
            server: self.0.server.clone(),
            http: BoxCloneSyncService::new(service),
        }
    }
}

// === impl Connections ===

impl Connections {
    async fn send(self: Arc<Self>, request: Request<Body>) -> Result<Response<ResponseBody>, BoxError> {
        // The pages of a list count as one request, as client-go lists without pages.
        if let Some(rate) = &self.rate
            && !is_next_page(request.uri())
        {
            // The workers start after the caches are synced.
            self.counts.limited(rate.acquire(Priority::High)).await;
        }
        let is_watch = is_watch(request.uri());
        let mut running = self.counts.begin(request.method(), request.uri());
        let answer = async {
            match timeout(RESPONSE_TIMEOUT, self.http.clone().oneshot(fenced(request))).await {
                Ok(answer) => answer.map_err(|error| Unanswered::Lost(self.server.clone(), error)),
                Err(_) => Err(Unanswered::Late(self.server.clone())),
            }
        };
        let answer = answer.await;
        running.outcome = match &answer {
            Ok(response) => Outcome::Answered(response.status()),
            Err(_) => Outcome::Failed,
        };
        drop(running);
        let whole = complete(&self.server, is_watch, answer?);
        let whole = timeout(RESPONSE_TIMEOUT, whole).await;
        Ok(whole.map_err(|_| Unanswered::Late(self.server.clone()))??)
    }
}

/// The response with its whole body, unless it is a watch's, or with a Status if it rejects the request.
async fn complete(
    server: &Arc<str>,
    is_watch: bool,
    answer: Response<ResponseBody>,
) -> Result<Response<ResponseBody>, Unanswered> {
    let is_rejected = answer.status().is_client_error() || answer.status().is_server_error();
    if is_watch && !is_rejected {
        return Ok(answer);
    }
    let (head, body) = answer.into_parts();
    let mut body = body
        .collect()
        .await
        .map_err(|error| Unanswered::CutOff(server.clone(), error))?
        .to_bytes();
    if is_rejected {
        let status = serde_json::to_vec(&status::of_rejection(&head, &body));
        body = status.expect("a Status must be JSON").into();
    }
    let body = Full::new(body).map_err(Into::into).boxed_unsync();
    Ok(Response::from_parts(head, body))
}

fn is_next_page(uri: &http::Uri) -> bool {
    let query = uri.query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with("continue="))
}

/// The part before the slash becomes the manager in `managedFields`, so it equals the Go sidecar's.
fn user_agent() -> HeaderValue {
    HeaderValue::from_static(concat!("csi-attacher/v", env!("CARGO_PKG_VERSION"), " (rust)"))
}

#[cfg(test)]
mod tests;
