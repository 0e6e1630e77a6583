//! Nodes.

use axum::extract::{Path, State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{limit, page};
use crate::admin::problem::Refusal;
use crate::admin::request::{Json, Query};
use crate::admin::resource::{Node, Page, Problem};
use crate::admin::server::Admin;
use crate::backend::{Array, NodeView};

/// How many of a node's volumes a page of nodes tells.
const SOME_VOLUMES: usize = 8;

/// Which nodes.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct NodeQuery {
    /// Those whose id contains this text.
    search: Option<String>,
    /// `true` for those that hold volumes, `false` for the others.
    attached: Option<bool>,
    /// Those after this id.
    after: Option<String>,
    /// At most so many; 100 unless told otherwise, never more than 1000.
    limit: Option<usize>,
}

/// The nodes, sorted by id, each with the first of its volumes.
#[utoipa::path(get, path = "/nodes", tag = "nodes", params(NodeQuery),
    responses((status = 200, body = Page<Node>), (status = "default", body = Problem)))]
pub(super) async fn list(
    State(admin): State<Admin>,
    Query(query): Query<NodeQuery>,
) -> Result<Json<Page<Node>>, Refusal> {
    let limit = limit(query.limit);
    let nodes = admin.driver.store.read(|array| {
        let nodes = array.nodes().filter(|node| query.covers(node));
        let is_later = |node: &NodeView<'_>| {
            query
                .after
                .as_deref()
                .is_none_or(|after| node.id.as_str() > after)
        };
        let shown = |node: NodeView<'_>| shown(array, &node, SOME_VOLUMES);
        Ok(page(nodes, limit, is_later, shown, |node| node.id.clone()))
    });
    Ok(Json(nodes.await?))
}

/// One node with all of its volumes.
#[utoipa::path(get, path = "/nodes/{node}", tag = "nodes", params(("node" = String, Path, description = "Its id.")),
    responses((status = 200, body = Node), (status = "default", body = Problem)))]
pub(super) async fn get(State(admin): State<Admin>, Path(node): Path<String>) -> Result<Json<Node>, Refusal> {
    let found = admin.driver.store.read(|array| {
        let found = array.nodes().find(|known| known.id.as_str() == node);
        Ok(found.map(|found| shown(array, &found, usize::MAX)))
    });
    let found = found.await?;
    found.map(Json).ok_or_else(|| Refusal::not_found("node", &node))
}

fn shown(array: &Array, node: &NodeView<'_>, volumes: usize) -> Node {
    Node {
        id: node.id.to_string(),
        registered: node.registered,
        attached: node.attached,
        limit: node.limit,
        volumes: array
            .attached_to(node.id.as_str())
            .take(volumes)
            .map(ToString::to_string)
            .collect(),
    }
}

// === impl NodeQuery ===

impl NodeQuery {
    fn covers(&self, node: &NodeView<'_>) -> bool {
        let contains = |text: &String| node.id.as_str().contains(text.as_str());
        self.search.as_ref().is_none_or(contains)
            && self
                .attached
                .is_none_or(|attached| attached == (node.attached > 0))
    }
}
