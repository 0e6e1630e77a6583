//! The dashboard: one page for people, served from the program itself. Its script is plain modules that
//! no tool has to build.

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;

use super::state::Admin;

const PAGE: &str = include_str!("dashboard/page.html");

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, media type and text of everything the page is made of.
const ASSETS: [(&str, &str, &str); 13] = [
    (
        "/dashboard/style.css",
        "text/css; charset=utf-8",
        include_str!("dashboard/style.css"),
    ),
    (
        "/dashboard/icon.svg",
        "image/svg+xml",
        include_str!("dashboard/icon.svg"),
    ),
    ("/dashboard/api.js", SCRIPT, include_str!("dashboard/api.js")),
    ("/dashboard/calls.js", SCRIPT, include_str!("dashboard/calls.js")),
    (
        "/dashboard/capabilities.js",
        SCRIPT,
        include_str!("dashboard/capabilities.js"),
    ),
    ("/dashboard/dom.js", SCRIPT, include_str!("dashboard/dom.js")),
    (
        "/dashboard/faults.js",
        SCRIPT,
        include_str!("dashboard/faults.js"),
    ),
    ("/dashboard/main.js", SCRIPT, include_str!("dashboard/main.js")),
    ("/dashboard/nodes.js", SCRIPT, include_str!("dashboard/nodes.js")),
    ("/dashboard/pager.js", SCRIPT, include_str!("dashboard/pager.js")),
    (
        "/dashboard/snapshots.js",
        SCRIPT,
        include_str!("dashboard/snapshots.js"),
    ),
    (
        "/dashboard/storage.js",
        SCRIPT,
        include_str!("dashboard/storage.js"),
    ),
    (
        "/dashboard/volumes.js",
        SCRIPT,
        include_str!("dashboard/volumes.js"),
    ),
];

/// The page and what it is made of.
pub(super) fn routes() -> Router<Admin> {
    let page = Router::new().route("/", get(async || asset("text/html; charset=utf-8", PAGE)));
    ASSETS.into_iter().fold(page, |routes, (path, kind, text)| {
        routes.route(path, get(async move || asset(kind, text)))
    })
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, kind)], text)
}
