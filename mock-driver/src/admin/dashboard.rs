//! The dashboard: one page for people, served from the program itself.

use axum::Router;
use axum::response::IntoResponse;
use axum::routing::get;
use http::header::CONTENT_TYPE;

use super::server::Admin;

const PAGE: &str = include_str!("dashboard/page.html");
const STYLE: &str = include_str!("dashboard/style.css");
const SCRIPT: &str = include_str!("dashboard/script.js");

/// The page and what it is made of.
pub(super) fn routes() -> Router<Admin> {
    Router::new()
        .route("/", get(async || asset("text/html; charset=utf-8", PAGE)))
        .route(
            "/dashboard.css",
            get(async || asset("text/css; charset=utf-8", STYLE)),
        )
        .route(
            "/dashboard.js",
            get(async || asset("text/javascript; charset=utf-8", SCRIPT)),
        )
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, kind)], text)
}
