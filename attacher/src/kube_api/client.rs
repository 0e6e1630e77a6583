//! How we talk HTTP to the API server.
//!
//! kube's ready-made client speaks HTTP/1.1 only, one connection a request in flight, without a read
//! deadline on writes and with waits of its own for 429. This one speaks HTTP/2 over few
//! connections, notices a silent network by pings, and leaves deadlines and retries to
//! [`retry`](super::retry). See docs/adr/0002-own-http-stack.md.

use std::sync::Arc;
use std::time::Duration;

use http::header::USER_AGENT;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::middleware::{AuthLayer, BaseUriLayer, ExtraHeadersLayer};
use kube::client::{AuthError, Body, ConfigExt};
use kube::config::AuthInfo;
use kube::{Client, Config};
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use rustls::{ClientConfig, RootCertStore};
use secrecy::ExposeSecret as _;
use tokio::time::error::Elapsed;
use tokio::time::timeout;
use tower::{BoxError, Layer as _, ServiceBuilder, service_fn, util};

use super::metrics::is_watch;
use super::request_limiter::Priority;
use super::{RateLimit, Requests, attempt};
use crate::leader_election::Fenced;
use crate::report::{address, chain};

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
/// stream for good and, while we are slow to read it, the connection's window from all other streams.
#[derive(Clone)]
pub struct Clients {
    /// For lists and watches.
    pub watches: Client,
    /// For reads and writes of single objects.
    pub requests: Client,
    /// The rate limit that watches and requests share; users of [`Clients::requests`] apply it.
    pub rate: Option<RateLimit>,
    /// What all of them asked, and were answered.
    pub counts: Requests,
}

/// The API server's address and the credentials for it. A clone shares the credentials.
#[derive(Clone)]
pub struct Access(Arc<Settings>);

struct Settings {
    base: BaseUriLayer,
    headers: ExtraHeadersLayer,
    auth: Option<AuthLayer>,
    tls: ClientConfig,
    server_name: Option<ServerName<'static>>,
    namespace: String,
}

type Http = legacy::Client<HttpsConnector<HttpConnector>, Fenced<Body>>;

/// The connections of one client.
struct Connections {
    rate: Option<RateLimit>,
    counts: Requests,
    http: Http,
}

/// The body of an answer: read already, or a watch's.
type Answer<B> = Either<Full<Bytes>, B>;

/// A request got no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    #[error(transparent)]
    Lost(#[from] legacy::Error),
    #[error("the answer was cut off")]
    CutOff(#[source] BoxError),
    #[error("no answer within {} s", ANSWER_TIMEOUT.as_secs())]
    Late(#[from] Elapsed),
}

/// The client configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Neither a certificate nor a key nor an authority can be used.
    #[error("the TLS settings of the Kubernetes client configuration are not usable")]
    Tls(#[source] kube::Error),
    /// `tls-server-name` is not a host name.
    #[error("tls-server-name {name:?} is not a name")]
    ServerName {
        /// The name.
        name: String,
        /// Why.
        #[source]
        source: InvalidDnsNameError,
    },
    /// The user's credentials cannot be used.
    #[error("the credentials of the Kubernetes client configuration are not usable")]
    Credentials(#[from] CredentialsError),
    /// The impersonated user cannot be sent.
    #[error("the user whom the Kubernetes client configuration impersonates is not usable")]
    Impersonation(#[source] kube::Error),
    /// A proxy is configured.
    #[error(
        "the Kubernetes client configuration names a proxy ({0}), which is not supported: connect directly"
    )]
    Proxy(String),
}

/// Credentials cannot be used. The text holds nothing that an exec plugin printed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CredentialsError(String);

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
    /// Takes a configuration. An exec plugin runs here, and again when its token expires.
    ///
    /// # Errors
    ///
    /// When it cannot be used at all. A server that cannot be reached is no error here.
    pub fn new(config: &Config) -> Result<Self, ConnectError> {
        if let Some(proxy) = &config.proxy_url {
            return Err(ConnectError::Proxy(address(&proxy.to_string())));
        }
        let mut config = config.clone();
        leave_out_empty(&mut config.auth_info);
        let auth = config.auth_layer().map_err(|error| {
            if let kube::Error::Auth(error) = &error {
                CredentialsError::from(error)
            } else {
                CredentialsError(chain(&error))
            }
        })?;
        Ok(Self(Arc::new(Settings {
            base: config.base_uri_layer(),
            headers: config
                .extra_headers_layer()
                .map_err(ConnectError::Impersonation)?,
            auth,
            tls: tls(&config)?,
            server_name: server_name(&config)?,
            namespace: config.default_namespace,
        })))
    }

    /// A client with a connection of its own, made when it is first used. Its requests wait for `rate` and
    /// are counted.
    pub fn connect(&self, rate: Option<RateLimit>, counts: Requests) -> Client {
        let connections = Arc::new(Connections {
            rate,
            counts,
            http: self.http(),
        });
        let send = service_fn(move |request| connections.clone().send(request));
        let authorized = match &self.0.auth {
            Some(auth) => util::Either::Left(auth.layer(send)),
            None => util::Either::Right(send),
        };
        let service = ServiceBuilder::new()
            .layer(self.0.base.clone())
            .layer(self.0.headers.clone())
            .map_request(|mut request: Request<Body>| {
                request.headers_mut().insert(USER_AGENT, user_agent());
                request
            })
            .map_err(without_plugin_output)
            .service(authorized);
        Client::new(service, self.0.namespace.clone())
    }

    fn http(&self) -> Http {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let builder = HttpsConnectorBuilder::new()
            .with_tls_config(self.0.tls.clone())
            .https_or_http();
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

/// An empty value in a kubeconfig counts as none, as in client-go, and so does a token beside a token file that
/// can be read; kube takes both at their word.
fn leave_out_empty(user: &mut AuthInfo) {
    let empty = |value: &Option<String>| value.as_ref().is_some_and(String::is_empty);
    for field in [
        &mut user.username,
        &mut user.token_file,
        &mut user.client_certificate,
        &mut user.client_certificate_data,
        &mut user.client_key,
    ] {
        if empty(field) {
            *field = None;
        }
    }
    for field in [&mut user.token, &mut user.password, &mut user.client_key_data] {
        if field
            .as_ref()
            .is_some_and(|value| value.expose_secret().is_empty())
        {
            *field = None;
        }
    }
    if user.token.is_some()
        && let Some(path) = &user.token_file
    {
        match std::fs::File::open(path) {
            Ok(_) => user.token = None,
            Err(_) => user.token_file = None,
        }
    }
}

fn tls(config: &Config) -> Result<ClientConfig, ConnectError> {
    if config.cluster_url.scheme() == Some(&Scheme::HTTP) {
        // Without TLS no authority is needed, which the system may not have.
        let builder = ClientConfig::builder().with_root_certificates(RootCertStore::empty());
        return Ok(builder.with_no_client_auth());
    }
    config.rustls_client_config().map_err(ConnectError::Tls)
}

fn server_name(config: &Config) -> Result<Option<ServerName<'static>>, ConnectError> {
    let name = config.tls_server_name.clone().filter(|name| !name.is_empty());
    name.map(|name| {
        ServerName::try_from(name.clone()).map_err(|source| ConnectError::ServerName { name, source })
    })
    .transpose()
}

/// kube's error holds all that a plugin printed, which may be a credential.
fn without_plugin_output(error: BoxError) -> BoxError {
    match error.downcast::<AuthError>() {
        Ok(error) => CredentialsError::from(&*error).into(),
        Err(error) => error,
    }
}

// === impl CredentialsError ===

impl From<&AuthError> for CredentialsError {
    fn from(error: &AuthError) -> Self {
        Self(if let AuthError::AuthExecRun { out, .. } = error {
            // Neither is its command line quoted, whose arguments may be secret, too.
            format!("the exec plugin failed with {}", out.status)
        } else if let AuthError::AuthExecParse(_) = error {
            "the exec plugin did not print an ExecCredential".to_owned()
        } else if let AuthError::MalformedTokenExpirationDate(_) = error {
            "the exec plugin's expirationTimestamp is not an RFC 3339 time".to_owned()
        } else {
            chain(error)
        })
    }
}

// === impl Connections ===

impl Connections {
    async fn send(self: Arc<Self>, request: Request<Body>) -> Result<Response<Answer<Incoming>>, BoxError> {
        // The pages of a list are one request to the limit, as client-go has no pages for what a cache serves.
        if let Some(rate) = &self.rate
            && !is_next_page(request.uri())
        {
            // Nothing works before the caches are synced.
            rate.acquire(Priority::High).await;
        }
        let is_watch = is_watch(request.uri());
        let answer = self
            .counts
            .counted(request, |request| {
                attempt::sent(request, async |request| {
                    Ok::<_, Unanswered>(timeout(ANSWER_TIMEOUT, self.http.request(request)).await??)
                })
            })
            .await?;
        Ok(complete(is_watch, answer).await?)
    }
}

/// The answer with its whole body, unless it is a watch's, which has no end.
pub(crate) async fn complete<B>(
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
