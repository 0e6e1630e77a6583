//! Storage health.

use axum::extract::State;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::page::first;
use crate::admin::problem::Refusal;
use crate::admin::request::{Json, Reply};
use crate::admin::state::Admin;
use crate::admin_api::resource::{NodeStorage, Problem, Storage, StorageChange, StorageHealthIssue};
use crate::array::{self, Array, Capability};

/// Lists the health issues of the storage of all nodes, and of single nodes, sorted by id.
#[utoipa::path(get, path = "/storage", tag = "storage",
    responses((status = 200, body = Storage), (status = "default", body = Problem)))]
pub(super) async fn get(State(admin): State<Admin>) -> Reply<Storage> {
    let list = |array: &Array| {
        let nodes = array.unhealthy_storage().filter_map(|(node, issues)| {
            Some(NodeStorage {
                node: node?.to_string(),
                health: issues.iter().map(shown).collect(),
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
    let issues = read(change.health)?;
    admin
        .change(|array| array.set_storage_health(None, issues))
        .await?;
    get(State(admin)).await
}

/// Health issues of the storage of one node, or of all nodes.
pub(super) fn of(array: &Array, node: Option<&str>) -> Vec<StorageHealthIssue> {
    let meant = |(of, _): &(Option<&array::NodeId>, _)| of.map(array::NodeId::as_str) == node;
    let found = array.unhealthy_storage().find(meant);
    found
        .into_iter()
        .flat_map(|(_, issues)| issues)
        .map(shown)
        .collect()
}

/// Parses the storage health issues of a request.
pub(super) fn read(health: Vec<StorageHealthIssue>) -> Result<Vec<array::StorageHealthIssue>, Refusal> {
    health.into_iter().map(read_one).collect()
}

fn read_one(issue: StorageHealthIssue) -> Result<array::StorageHealthIssue, Refusal> {
    let status = parse_status(issue.status)?;
    let capability = match &issue.capability {
        None => None,
        Some(text) => Some(Capability::read(text).ok_or_else(|| {
            let message = format!(
                "health.capability: unknown capability \"{text}\": write it as volumes show theirs, such as \
                 block SINGLE_NODE_WRITER or mount(ext4) MULTI_NODE_MULTI_WRITER"
            );
            Refusal::invalid("health.capability", message)
        })?),
    };
    Ok(array::StorageHealthIssue {
        status,
        reason: issue.reason,
        message: issue.message,
        capability,
    })
}

fn shown(issue: &array::StorageHealthIssue) -> StorageHealthIssue {
    StorageHealthIssue {
        status: status_name(issue.status),
        reason: issue.reason.clone(),
        message: issue.message.clone(),
        capability: issue.capability.as_ref().map(ToString::to_string),
    }
}

/// Parses the status of a health issue by its name in the array's state.
pub(super) fn parse_status<T: DeserializeOwned>(status: String) -> Result<T, Refusal> {
    let field = "health.status";
    serde_json::from_value(status.into())
        .map_err(|error| Refusal::invalid(field, format!("{field}: {error}")))
}

pub(super) fn status_name(status: impl Serialize) -> String {
    let name = serde_json::to_value(status).expect("a status must be representable as JSON");
    name.as_str()
        .expect("a status must serialize as a string")
        .to_owned()
}
