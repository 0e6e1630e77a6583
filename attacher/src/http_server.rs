//! The pages of `--http-endpoint`: metrics, health, and status.
//!
//! Each page is computed at the request, from counts, names and messages that never hold a secret.
//!
//! - [`View`]: the state that the pages show; `manager` fills it.
//! - `health`: liveness, readiness and leadership.
//! - `statusz`: the whole state as YAML and as JSON.
//! - [`server`]: the HTTP server, bounded in connections and in time.
//! - `auth`: the permission to read all pages but health.
//! - `tls`: the certificate of the server.

mod auth;
mod health;
mod scrape;
pub mod server;
mod statusz;
mod tls;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::{Html, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderValue};
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::controller::state::ControllerState;
use crate::controller::{Clock, Heartbeat};
use crate::csi::Calls;
use crate::kube_api::Requests;
use crate::leader_election::Leadership;
pub use auth::Auth;
pub use tls::{Tls, TlsError};

/// The state that the pages show.
pub struct View {
    /// Calls to the driver, and its connection.
    pub calls: Calls,
    /// Requests to the API server.
    pub requests: Requests,
    /// Liveness of the control loop.
    pub heartbeat: Heartbeat,
    /// `--leader-election`.
    pub elects: bool,
    /// Our leadership, once the leader election has started.
    pub election: Mutex<Option<Leadership>>,
    /// Cancelled by SIGTERM.
    pub shutdown: CancellationToken,
    /// When the process started.
    pub started: Instant,
    /// The current time.
    pub clock: Clock,
    /// `--metrics-path`.
    pub metrics_path: String,
    /// `--statusz`.
    pub serves_statusz: bool,
    /// The controller's state, while the driver is connected.
    pub state: Mutex<Option<Arc<Mutex<ControllerState>>>>,
}

pub(crate) const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// The routes of the pages. `auth` decides who gets those that are not health.
pub fn router(view: Arc<View>, auth: Option<Auth>) -> Router {
    // A brace would begin a parameter.
    let metrics_path = view.metrics_path.replace('{', "{{").replace('}', "}}");
    let mut router = Router::new()
        .without_v07_checks()
        .route(&metrics_path, get(scrape::metrics));
    if view.serves_statusz {
        router = router.route("/statusz", get(statusz::page));
    }
    if view.metrics_path != "/" {
        router = router.route("/", get(index));
    }
    if let Some(auth) = auth {
        router = router.route_layer(from_fn_with_state(Arc::new(auth), auth::authorize));
    }
    with_health(router, view)
}

/// The routes of health alone.
pub fn health_router(view: Arc<View>) -> Router {
    with_health(Router::new(), view)
}

fn with_health(router: Router<Arc<View>>, view: Arc<View>) -> Router {
    let mut router = router
        .route("/healthz", get(health::alive))
        .route("/readyz", get(health::ready));
    if view.elects {
        router = router.route("/healthz/leader-election", get(health::leading));
    }
    router
        .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed\n"))
        .fallback(async || (StatusCode::NOT_FOUND, "404 page not found\n"))
        .layer(map_response(async |mut response: Response| {
            let headers = response.headers_mut();
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }))
        .with_state(view)
}

async fn index(State(view): State<Arc<View>>) -> Html<String> {
    let pages = [
        (view.metrics_path.as_str(), "metrics", true),
        ("/healthz", "liveness", true),
        ("/readyz", "readiness, and what is missing for it", true),
        (
            "/healthz/leader-election",
            "liveness of the leader election",
            view.elects,
        ),
        (
            "/statusz",
            "state of driver, leadership, caches and work",
            view.serves_statusz,
        ),
    ];
    let links = pages.iter().filter(|(.., served)| *served);
    let links = links.map(|(path, what, _)| {
        let path = path
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('"', "&quot;");
        format!("<li><a href=\"{path}\">{path}</a>: {what}</li>\n")
    });
    Html(format!(
        "<!DOCTYPE html><title>csi-attacher</title><h1>csi-attacher {VERSION}</h1>\n<ul>\n{}</ul>\n",
        links.collect::<String>()
    ))
}

// === impl View ===

impl View {
    /// Shows `state` until the work ends.
    pub fn work_begins(&self, state: Arc<Mutex<ControllerState>>) {
        *locked(&self.state) = Some(state);
    }

    /// Shows `election` until [`View::work_ends`].
    pub(crate) fn election_begins(&self, election: Leadership) {
        *locked(&self.election) = Some(election);
    }

    /// Work and election have ended; the next connection to the driver begins them again.
    pub(crate) fn work_ends(&self) {
        *locked(&self.state) = None;
        *locked(&self.election) = None;
        self.heartbeat.stop();
    }

    /// The controller's state. A handler holds its lock while it renders a page.
    fn state(&self) -> Option<Arc<Mutex<ControllerState>>> {
        locked(&self.state).clone()
    }

    fn election(&self) -> Option<Leadership> {
        locked(&self.election).clone()
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
