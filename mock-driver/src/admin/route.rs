//! The routes, one file a resource. Each handler is described where it stands, and the list below is
//! both what is served and what the OpenAPI document tells.

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::server::Admin;
use crate::admin_api::resource::Page;

pub(super) use self::info::counts;

mod attachment;
mod capability;
mod event;
mod fault;
mod group;
mod info;
mod journal;
mod node;
mod pool;
mod scenario;
mod script;
mod snapshot;
mod storage;
mod trouble;
mod volume;

/// How many items a page has by default.
const DEFAULT_LIMIT: usize = 100;

/// The most items in a page.
const MAX_LIMIT: usize = 1000;

/// All routes of the API.
pub(super) fn routes() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(info::info))
        .routes(routes!(volume::list, volume::create))
        .routes(routes!(volume::get, volume::change, volume::delete))
        .routes(routes!(snapshot::list, snapshot::create))
        .routes(routes!(snapshot::get, snapshot::delete))
        .routes(routes!(group::list, group::create))
        .routes(routes!(group::get, group::delete))
        .routes(routes!(pool::list))
        .routes(routes!(pool::get, pool::change))
        .routes(routes!(storage::get, storage::change))
        .routes(routes!(node::list, node::register))
        .routes(routes!(node::get, node::change, node::remove))
        .routes(routes!(attachment::list))
        .routes(routes!(attachment::attach, attachment::detach))
        .routes(routes!(capability::list))
        .routes(routes!(capability::change))
        .routes(routes!(fault::list, fault::put, fault::replace, fault::clear))
        .routes(routes!(fault::remove, fault::switch))
        .routes(routes!(fault::release))
        .routes(routes!(fault::reset))
        .routes(routes!(trouble::list, trouble::put))
        .routes(routes!(trouble::remove, trouble::switch))
        .routes(routes!(script::put))
        .routes(routes!(scenario::list))
        .routes(routes!(scenario::switch))
        .routes(routes!(journal::list, journal::forget))
        .routes(routes!(journal::wait))
        .routes(routes!(journal::judge))
        .routes(routes!(journal::running))
        .routes(routes!(event::calls))
        .routes(routes!(event::changes))
}

/// The number of items that a page is to have.
fn limit(asked: Option<usize>) -> usize {
    asked.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT)
}

/// A page of items that are in the order of their places: those after a place, as many as fit.
fn page<I, T>(
    items: impl Iterator<Item = I>,
    limit: usize,
    is_later: impl Fn(&I) -> bool,
    shown: impl Fn(I) -> T,
    place: impl Fn(&T) -> String,
) -> Page<T> {
    let mut page = Page {
        items: Vec::new(),
        matched: 0,
        next: None,
    };
    for item in items {
        page.matched += 1;
        if !is_later(&item) {
            continue;
        }
        if page.items.len() < limit {
            page.items.push(shown(item));
        } else if page.next.is_none() {
            page.next = page.items.last().map(&place);
        }
    }
    page
}
