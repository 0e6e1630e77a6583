//! The routes, one file per resource. The lists below define both the server and the OpenAPI document.

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::state::Admin;

mod attachment;
mod backend_fault;
mod capability;
mod event;
mod fault;
mod fault_file;
mod fixture;
mod group;
pub(super) mod info;
mod journal;
mod node;
mod pool;
mod scenario;
mod snapshot;
mod storage;
mod volume;

/// The routes that every process serves.
pub(super) fn of_process() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(info::info))
        .routes(routes!(capability::list))
        .routes(routes!(capability::change))
        .routes(routes!(fault::list, fault::put, fault::clear))
        .routes(routes!(fault::remove, fault::switch))
        .routes(routes!(fault::release))
        .routes(routes!(fault::reset))
        .routes(routes!(backend_fault::list, backend_fault::put))
        .routes(routes!(backend_fault::remove, backend_fault::switch))
        .routes(routes!(fault_file::put))
        .routes(routes!(fixture::reset))
        .routes(routes!(scenario::list))
        .routes(routes!(scenario::switch))
        .routes(routes!(journal::list, journal::clear))
        .routes(routes!(journal::wait))
        .routes(routes!(journal::assert))
        .routes(routes!(journal::running))
        .routes(routes!(event::calls))
        .routes(routes!(event::changes))
}

/// The routes that only the process with the array serves.
pub(super) fn of_array() -> OpenApiRouter<Admin> {
    OpenApiRouter::new()
        .routes(routes!(volume::list, volume::create))
        .routes(routes!(volume::get, volume::change, volume::delete))
        .routes(routes!(snapshot::list, snapshot::create))
        .routes(routes!(snapshot::get, snapshot::delete))
        .routes(routes!(group::list, group::create))
        .routes(routes!(group::get, group::delete))
        .routes(routes!(fixture::export, fixture::import))
        .routes(routes!(pool::list))
        .routes(routes!(pool::get, pool::change))
        .routes(routes!(storage::get, storage::change))
        .routes(routes!(node::list, node::register))
        .routes(routes!(node::get, node::change, node::remove))
        .routes(routes!(attachment::list))
        .routes(routes!(attachment::attach, attachment::detach))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::admin_api::client::requests::REQUESTS;

    #[test]
    fn client_has_a_request_for_each_route() {
        let document = of_process().merge(of_array()).into_openapi();
        let document = serde_json::to_value(document).unwrap();
        let routes: BTreeSet<String> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                let methods = item.as_object().unwrap().keys();
                methods.map(move |method| format!("{} {path}", method.to_uppercase()))
            })
            // These are streams.
            .filter(|route| !["GET /events", "GET /changes"].contains(&route.as_str()))
            .collect();
        let requests = REQUESTS.iter().map(|(method, path)| format!("{method} {path}"));
        assert_eq!(requests.collect::<BTreeSet<_>>(), routes);
    }
}
