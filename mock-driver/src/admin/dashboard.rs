//! The dashboard: one page, embedded in the program. Its script consists of modules that need no build.

use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Router, middleware};
use http::header::CONTENT_TYPE;

use super::guard::{self, Guard};
use super::state::Admin;

const PAGE: &str = include_str!("dashboard/page.html");

/// Path, media type and text of a file of the page.
macro_rules! asset {
    ($name:literal, $kind:literal) => {
        (
            concat!("/dashboard/", $name),
            $kind,
            include_str!(concat!("dashboard/", $name)),
        )
    };
    ($script:literal) => {
        asset!($script, "text/javascript; charset=utf-8")
    };
}

const ASSETS: [(&str, &str, &str); 16] = [
    asset!("style.css", "text/css; charset=utf-8"),
    asset!("icon.svg", "image/svg+xml"),
    asset!("api.js"),
    asset!("calls.js"),
    asset!("capabilities.js"),
    asset!("dom.js"),
    asset!("fault-form.js"),
    asset!("faults.js"),
    asset!("main.js"),
    asset!("nodes.js"),
    asset!("pager.js"),
    asset!("sentence.js"),
    asset!("snapshots.js"),
    asset!("storage.js"),
    asset!("volumes.js"),
    asset!("words.js"),
];

/// The files that depend on neither the driver nor the dashboard's markup.
const SHARED: [&str; 4] = [
    "/dashboard/style.css",
    "/dashboard/icon.svg",
    "/dashboard/api.js",
    "/dashboard/dom.js",
];

pub(super) fn routes() -> Router<Admin> {
    let page = Router::new().route("/", get(async || asset("text/html; charset=utf-8", PAGE)));
    with_assets(page, |_| true)
}

/// Another program's pages on loopback, with the dashboard's stylesheet, icon and script modules for requests and elements,
/// and with its protection against DNS rebinding and cross-site requests.
pub fn page_router(pages: Router) -> Router {
    with_assets(pages, |path| SHARED.contains(&path))
        .layer(middleware::from_fn_with_state(Guard::loopback(), guard::guard))
}

fn with_assets<S>(routes: Router<S>, wanted: impl Fn(&str) -> bool) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    let assets = ASSETS.into_iter().filter(|(path, ..)| wanted(path));
    assets.fold(routes, |routes, (path, kind, text)| {
        routes.route(path, get(async move || asset(kind, text)))
    })
}

fn asset(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(CONTENT_TYPE, kind)], text)
}

#[cfg(test)]
mod tests {
    use crate::rpc::code;
    use crate::rpc::method::Method;

    #[test]
    fn form_offers_all_methods_and_codes() {
        let words = include_str!("dashboard/words.js");
        let codes = code::names();
        let codes = codes.split(", ").chain(["OK"]);
        let known = Method::ALL.map(Method::name).into_iter().chain(codes);
        for word in known.clone() {
            assert!(words.contains(&format!("\"{word}\"")), "{word}");
        }
        assert_eq!(words.matches('"').count(), 2 * known.count(), "no other word");
    }
}
