//! The web page: the snapshots and the actions of the terminal view, for a browser. Stylesheet, script
//! modules and cross-site protection are those of the driver's dashboard.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Path, State};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use csi_mock_driver::admin;
use futures::{Stream, stream};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use kube::Client;
use ratatui::crossterm::event::KeyCode;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::action::{Action, BINDINGS, Command};
use super::snapshot::Snapshot;
use crate::explain;
use crate::narrate::Pace;

/// Minimum time between two snapshots for a browser.
const PAUSE: Duration = Duration::from_millis(300);
const SCRIPT: &str = "text/javascript; charset=utf-8";
/// Path, media type and text of the page's own assets.
const ASSETS: [(&str, &str, &str); 4] = [
    ("/", "text/html; charset=utf-8", include_str!("web/page.html")),
    ("/playground/main.js", SCRIPT, include_str!("web/main.js")),
    ("/playground/path.js", SCRIPT, include_str!("web/path.js")),
    (
        "/playground/style.css",
        "text/css; charset=utf-8",
        include_str!("web/style.css"),
    ),
];

/// A bound address for the page.
pub struct Page {
    listener: TcpListener,
    address: SocketAddr,
}

/// The served page. Dropping it stops the server.
pub(crate) struct ServedPage {
    address: SocketAddr,
    snapshots: watch::Sender<Arc<str>>,
    _server: JoinSet<()>,
}

#[derive(Clone)]
struct PageState {
    snapshots: watch::Sender<Arc<str>>,
    /// `None` while a story runs.
    actions: Option<mpsc::Sender<Action>>,
    pace: Pace,
    client: Client,
}

// === impl Page ===

impl Page {
    /// Binds the address.
    ///
    /// # Errors
    /// The address is in use or not local.
    pub async fn bind(address: SocketAddr) -> Result<Self> {
        let in_use =
            || format!("--web: cannot listen on {address}; choose another port, or 0 for a free one");
        let listener = TcpListener::bind(address).await.with_context(in_use)?;
        let address = listener.local_addr().with_context(in_use)?;
        Ok(Self { listener, address })
    }

    /// URL of the page.
    pub fn url(&self) -> String {
        url(self.address)
    }

    /// Serves the page. Without `actions` the user can only change the pace.
    pub(crate) fn serve(
        self,
        actions: Option<mpsc::Sender<Action>>,
        pace: Pace,
        client: Client,
    ) -> ServedPage {
        let snapshots = watch::Sender::new(Arc::from(""));
        let app = app(PageState {
            snapshots: snapshots.clone(),
            actions,
            pace,
            client,
        });
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(self.listener, app).await {
                tracing::error!(%error, "cannot serve the web page");
            }
        });
        ServedPage {
            address: self.address,
            snapshots,
            _server: server,
        }
    }
}

// === impl ServedPage ===

impl ServedPage {
    pub(crate) fn url(&self) -> String {
        url(self.address)
    }

    /// Sends a snapshot to all connected browsers.
    pub(crate) fn publish(&self, snapshot: &Snapshot) {
        if self.snapshots.receiver_count() == 0 {
            return;
        }
        let text = serde_json::to_string(snapshot).expect("a snapshot must be representable as JSON");
        self.snapshots.send_replace(text.into());
    }
}

// === functions ===

/// Parses an address of `--web`.
///
/// # Errors
/// It is not an address and a port, or other hosts can reach it.
pub fn loopback_address(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| "give an address and a port, such as 127.0.0.1:8080".to_owned())?;
    if !address.ip().is_loopback() {
        return Err("other hosts can reach this address; give one such as 127.0.0.1:8080".to_owned());
    }
    Ok(address)
}

fn url(address: SocketAddr) -> String {
    format!("http://{address}/")
}

fn app(state: PageState) -> Router {
    let assets = ASSETS
        .into_iter()
        .fold(Router::new(), |routes, (path, kind, text)| {
            routes.route(path, get(async move || ([(CONTENT_TYPE, kind)], text)))
        });
    let pages = assets
        .route("/api/v1/actions", get(actions))
        .route("/api/v1/actions/{key}", post(perform))
        .route("/api/v1/pace/{command}", post(change_pace))
        .route("/api/v1/changes", get(changes))
        .route("/api/v1/explain", get(explain_cluster))
        .with_state(state);
    admin::page_router(pages)
}

fn bound_actions() -> impl Iterator<Item = (char, Action, &'static str)> {
    BINDINGS
        .iter()
        .filter_map(|binding| match (binding.key, binding.command) {
            (KeyCode::Char(key), Command::Toggle(action)) => Some((key, action, binding.help)),
            _ => None,
        })
}

/// The actions with their keys; none while a story runs.
async fn actions(State(state): State<PageState>) -> Response {
    let action = |(key, action, help): (char, Action, &str)| {
        let is_toggle = action != Action::RestartControllers;
        json!({"key": key, "label": action.label(), "verb": action.verb(), "undo": action.undo(), "help": help, "isToggle": is_toggle})
    };
    let offered = state.actions.is_some();
    let actions: Vec<_> = bound_actions().filter(|_| offered).map(action).collect();
    json_response(StatusCode::OK, &Value::from(actions))
}

/// Pauses, lets one step begin, or goes on.
async fn change_pace(State(state): State<PageState>, Path(command): Path<String>) -> Response {
    match command.as_str() {
        "step" => state.pace.pause_or_step(),
        "resume" => state.pace.resume(),
        _ => {
            let message = json!({"message": "the pace can be changed by step and resume"});
            return json_response(StatusCode::NOT_FOUND, &message);
        }
    }
    StatusCode::ACCEPTED.into_response()
}

/// Performs the action of a key. Its result is the notice of a later snapshot.
async fn perform(State(state): State<PageState>, Path(key): Path<String>) -> Response {
    let problem = |status, message: &str| json_response(status, &json!({"message": message}));
    let Some(sender) = state.actions else {
        return problem(StatusCode::CONFLICT, "a story is running; its faults are fixed");
    };
    let bound = bound_actions().find(|(bound, ..)| key == bound.to_string());
    match bound.map(|(_, action, _)| sender.try_send(action)) {
        None => problem(
            StatusCode::NOT_FOUND,
            "no action has this key; GET /api/v1/actions lists them",
        ),
        Some(Err(_)) => problem(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many queued actions; try again",
        ),
        Some(Ok(())) => StatusCode::ACCEPTED.into_response(),
    }
}

/// What `kubectl csi-attach explain -A` prints, as text.
async fn explain_cluster(State(state): State<PageState>) -> Response {
    let text = explain(state.client).await;
    ([(CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

/// Streams the snapshots, at most one per [`PAUSE`].
async fn changes(State(state): State<PageState>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let events = stream::unfold(state.snapshots.subscribe(), async |mut snapshots| {
        snapshots.changed().await.ok()?;
        let event = Event::default()
            .event("changed")
            .data(snapshots.borrow_and_update().as_ref());
        tokio::time::sleep(PAUSE).await;
        Some((Ok(event), snapshots))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

fn json_response(status: StatusCode, body: &Value) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
