//! Storage health.

use axum::extract::State;

use crate::admin::page::first;
use crate::admin::request::{Json, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{NodeStorage, Problem, Storage, StorageChange, StorageHealthIssue};
use crate::array::{self, Array};

/// Lists the health issues of the storage of all nodes, and of single nodes, sorted by id.
#[utoipa::path(get, path = "/storage", tag = "storage",
    responses((status = 200, body = Storage), (status = "default", body = Problem)))]
pub(super) async fn get(State(admin): State<Admin>) -> Reply<Storage> {
    let list = |array: &Array| {
        let nodes = array.unhealthy_storage().filter_map(|(node, issues)| {
            Some(NodeStorage {
                node: node?.to_string(),
                health: issues.to_vec(),
            })
        });
        Ok(Storage {
            health: of(array, None),
            nodes: first(nodes.collect(), usize::MAX, |storage| storage.node.as_str()),
        })
    };
    admin.read(list).await
}

/// Sets the health issues of the storage of all nodes. Those of one node are set with the node.
#[utoipa::path(patch, path = "/storage", tag = "storage", request_body = StorageChange,
    responses((status = 200, body = Storage), (status = "default", body = Problem)))]
pub(super) async fn change(State(admin): State<Admin>, Json(change): Json<StorageChange>) -> Reply<Storage> {
    admin
        .change(|array| array.set_storage_health(None, change.health))
        .await?;
    get(State(admin)).await
}

/// Health issues of the storage of one node, or of all nodes.
pub(super) fn of(array: &Array, node: Option<&str>) -> Vec<StorageHealthIssue> {
    let meant = |(of, _): &(Option<&array::NodeId>, _)| of.map(array::NodeId::as_str) == node;
    let found = array.unhealthy_storage().find(meant);
    found.map(|(_, issues)| issues.to_vec()).unwrap_or_default()
}
