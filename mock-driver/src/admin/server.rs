use std::any::Any;
use std::io;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use tokio::net::{TcpListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::openapi::{InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;

use super::guard::{self, Guard};
use super::problem::Refusal;
use super::state::Admin;
use super::{dashboard, metrics, route};
use crate::admin_api::Endpoint;
use crate::driver::Driver;
use crate::socket;

#[derive(Debug)]
pub struct Server {
    listener: Listener,
    endpoint: Endpoint,
    allowed_hosts: Vec<String>,
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(socket::Listener),
}

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum BindError {
    #[error(
        "--admin-endpoint: {endpoint} is not a loopback address, and the admin API has no authentication: use 127.0.0.1 \
         or a Unix socket, or set --admin-allow-remote"
    )]
    Remote { endpoint: Endpoint },
    /// A DNS name; only clients resolve names.
    #[error("--admin-endpoint: {endpoint} is a DNS name; set an address to listen on")]
    Name { endpoint: Endpoint },
    #[error("--admin-endpoint: cannot listen on {endpoint}")]
    Tcp { endpoint: Endpoint, source: io::Error },
    #[error("--admin-endpoint")]
    Unix(#[source] socket::BindError),
}

// === impl Server ===

impl Server {
    /// Binds the endpoint, if one is given.
    ///
    /// # Errors
    /// If it cannot be bound, or is not a loopback address and `--admin-allow-remote` is not set.
    pub async fn bind(endpoint: &Endpoint, allow_remote: bool) -> Result<Option<Self>, BindError> {
        if !allow_remote && !endpoint.is_local() {
            return Err(BindError::Remote {
                endpoint: endpoint.clone(),
            });
        }
        let failed = |source| BindError::Tcp {
            endpoint: endpoint.clone(),
            source,
        };
        let (listener, endpoint) = match endpoint {
            Endpoint::None => return Ok(None),
            Endpoint::Host { .. } => {
                let endpoint = endpoint.clone();
                return Err(BindError::Name { endpoint });
            }
            Endpoint::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                (Listener::Tcp(listener), Endpoint::Tcp(address))
            }
            Endpoint::Unix(socket) => {
                let listener = socket::Listener::bind(socket).map_err(BindError::Unix)?;
                (Listener::Unix(listener), endpoint.clone())
            }
        };
        Ok(Some(Self {
            listener,
            endpoint,
            allowed_hosts: Vec::new(),
        }))
    }

    /// Also accepts requests over TCP for these host names.
    #[must_use]
    pub(crate) fn allow_hosts(mut self, names: Vec<String>) -> Self {
        self.allowed_hosts = names;
        self
    }

    /// The local address, with the assigned port if it was 0.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Serves a driver until `stop`, then drains requests.
    pub(crate) async fn serve(self, driver: Arc<Driver>, stop: CancellationToken) -> io::Result<()> {
        let admin = Admin {
            started: driver.settings.clock.now(),
            driver,
            stop: stop.clone(),
        };
        let stopped = stop.cancelled_owned();
        match self.listener {
            Listener::Tcp(listener) => {
                axum::serve(listener, app(admin, Guard::tcp(self.allowed_hosts)))
                    .with_graceful_shutdown(stopped)
                    .await
            }
            Listener::Unix(listener) => {
                axum::serve(Sockets(listener), app(admin, Guard::unix()))
                    .with_graceful_shutdown(stopped)
                    .await
            }
        }
    }
}

fn app(admin: Admin, guard: Guard) -> axum::Router {
    let (router, document) = api(&admin);
    let document = Arc::new(document);
    router
        .route(
            "/openapi.json",
            get(async move || super::request::Json(document.as_ref().clone())),
        )
        .route("/metrics", get(metrics::metrics))
        .route("/healthz", get(metrics::healthz))
        .route("/readyz", get(metrics::readyz))
        .merge(dashboard::routes())
        .fallback(async || Refusal::new(tonic::Code::NotFound, "path not found; see /openapi.json"))
        .method_not_allowed_fallback(async |method: http::Method| {
            let message = format!("method {method} not allowed; see /openapi.json");
            Refusal::new(tonic::Code::Unimplemented, message).with_status(StatusCode::METHOD_NOT_ALLOWED)
        })
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn_with_state(guard, guard::guard))
        .with_state(admin)
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    Refusal::from(crate::driver::error::Error::Broken).into_response()
}

/// Refuses routes of the array in a process without one.
async fn has_array(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    match elsewhere(&admin.driver) {
        Some(reason) => Refusal::new(tonic::Code::FailedPrecondition, reason).into_response(),
        None => next.run(request).await,
    }
}

/// The reason that this process has no array; `None` if it has one.
fn elsewhere(driver: &Driver) -> Option<String> {
    if let Some(to) = &driver.settings.proxy_to {
        let to = to.display();
        return Some(format!(
            "this process is a proxy (--proxy-to={to}) and has no array"
        ));
    }
    let remote = driver.remote.as_ref()?;
    Some(format!(
        "this process runs with --mode=node; send the request to the controller, --array-endpoint={}",
        remote.endpoint
    ))
}

/// The API and its OpenAPI document, from the same lists of routes.
fn api(admin: &Admin) -> (axum::Router<Admin>, OpenApi) {
    let info = InfoBuilder::new()
        .title("csi-mock-driver admin API")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Inspects the mock CSI driver and injects faults. Changes bypass fault rules, journal and capabilities, \
             like out-of-band changes on a storage array. Not an interface for production storage.",
        ))
        .license(Some(
            LicenseBuilder::new()
                .name("Apache-2.0")
                .identifier(Some("Apache-2.0"))
                .build(),
        ))
        .build();
    let document = OpenApiBuilder::new().info(info).build();
    let of_array = route::of_array().route_layer(middleware::from_fn_with_state(admin.clone(), has_array));
    OpenApiRouter::with_openapi(document)
        .nest(
            "/api/v1",
            route::of_process().merge(route::streams()).merge(of_array),
        )
        .split_for_parts()
}

struct Sockets(socket::Listener);

impl axum::serve::Listener for Sockets {
    type Io = UnixStream;
    type Addr = ();

    async fn accept(&mut self) -> (UnixStream, ()) {
        (self.0.accept().await, ())
    }

    fn local_addr(&self) -> io::Result<()> {
        Ok(())
    }
}
