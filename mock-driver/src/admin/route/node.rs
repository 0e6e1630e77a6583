use std::collections::BTreeMap;

use super::storage;
use crate::admin::page::{first, page};
use crate::admin::problem::Refusal;
use crate::admin::request::Reply;
use crate::admin::state::Admin;
use crate::admin_api::query::NodeQuery;
use crate::admin_api::resource::{Node, NodeChange, NodeNew, Page};
use crate::array::{self, Array, NodeSettings, Segments};
use crate::rpc::validate;

/// Number of volumes per node in a page of nodes.
const SOME_VOLUMES: usize = 8;

pub(super) async fn list(admin: &Admin, query: NodeQuery) -> Reply<Page<Node>> {
    let (after, limit) = (query.after.as_deref(), query.limit);
    let list = |array: &Array| {
        let nodes = array.nodes().filter(|node| query.covers(node));
        let shown = |node| shown(array, node, SOME_VOLUMES);
        Ok(page(nodes, after, limit, |node| node.id.as_str(), shown))
    };
    admin.read(list).await
}

pub(super) async fn get(admin: &Admin, node: &str) -> Reply<Node> {
    admin
        .read(|array| Ok(shown(array, &array.node_or_former(node)?, usize::MAX)))
        .await
}

pub(super) async fn register(admin: &Admin, new: NodeNew) -> Reply<Node> {
    check_id(&new.id)?;
    let has_topology = new.topology.is_some();
    let settings = NodeSettings {
        registered: Some(true),
        limit: new.limit,
        segments: new.topology.as_ref().map(segments).transpose()?,
        ..NodeSettings::default()
    };
    admin
        .change(|array| Ok(array.set_node(&new.id, settings)))
        .await?;
    if has_topology {
        admin.driver.warn_if_no_pool_is_accessible(&new.id);
    }
    get(admin, &new.id).await
}

pub(super) async fn change(admin: &Admin, node: &str, change: NodeChange) -> Reply<Node> {
    let settings = NodeSettings {
        registered: change.registered,
        limit: change.limit,
        advertised: change.advertised_limit,
        segments: change.topology.as_ref().map(segments).transpose()?,
        ..NodeSettings::default()
    };
    let new_id = change.id.filter(|id| *id != node);
    if let Some(id) = &new_id {
        check_id(id)?;
    }
    let validate = |array: &Array| {
        let known = array.node_or_former(node)?;
        let is_registered = change.registered.unwrap_or(known.registered);
        let is_unhealthy = !storage::of(array, Some(node)).is_empty();
        if !is_registered
            && (new_id.is_some() || change.health.is_some() && !known.registered && !is_unhealthy)
        {
            return Err(array::Error::NodeNotFound {
                node: node.to_owned(),
            });
        }
        match &new_id {
            Some(id) => array.check_new_node_id(id).map(|()| known),
            None => Ok(known),
        }
    };
    let known = admin.read(validate).await?;
    let set = settings != NodeSettings::default();
    // A node that is registered again must exist before health issues can be set.
    if set && !known.registered {
        let settings = settings.clone();
        admin.change(|array| Ok(array.set_node(node, settings))).await?;
    }
    if let Some(health) = change.health {
        admin
            .change(|array| array.set_storage_health(Some(node), health))
            .await?;
    }
    if set && known.registered {
        admin.change(|array| Ok(array.set_node(node, settings))).await?;
    }
    let node = match new_id {
        Some(id) => {
            admin.change(|array| array.change_node_id(node, &id)).await?;
            if admin.driver.is_here(node)
                && let Some(here) = &admin.driver.node
            {
                here.set_info(|info| info.id.clone_from(&id));
            }
            id
        }
        None => node.to_owned(),
    };
    if change.topology.is_some() {
        admin.driver.warn_if_no_pool_is_accessible(&node);
    }
    // The array deletes a node that is not registered and has no attached volumes.
    let gone = array::Node {
        registered: false,
        renamed_to: None,
        ..known
    };
    let show = |array: &Array| Ok(shown(array, array.node(&node).unwrap_or(&gone), usize::MAX));
    admin.read(show).await
}

pub(super) async fn remove(admin: &Admin, node: &str) -> Reply<()> {
    admin.change(|array| array.remove_node(node)).await
}

fn check_id(id: &str) -> Result<(), Refusal> {
    let checked = validate::required(validate::NODE_ID, id).map(drop);
    checked.map_err(|invalid| Refusal::invalid("id", format!("id: {}", invalid.reason)))
}

fn segments(topology: &BTreeMap<String, String>) -> Result<Segments, Refusal> {
    let pairs = topology.iter();
    let pairs = pairs.map(|(key, value)| (key.as_str(), value.as_str()));
    Ok(validate::segments("topology", pairs)?)
}

fn shown(array: &Array, node: &array::Node, volumes: usize) -> Node {
    Node {
        health: storage::of(array, Some(node.id.as_str())),
        id: node.id.to_string(),
        registered: node.registered,
        renamed_to: node.renamed_to.as_ref().map(ToString::to_string),
        attached: node.attached.len(),
        limit: node.limit,
        advertised_limit: node.advertised,
        topology: node.segments.as_map().clone(),
        volumes: first(node.attached.iter().collect(), volumes, |volume| volume.as_str())
            .into_iter()
            .map(ToString::to_string)
            .collect(),
    }
}

// === impl NodeQuery ===

impl NodeQuery {
    fn covers(&self, node: &array::Node) -> bool {
        let contains = |text: &String| node.id.as_str().contains(text.as_str());
        self.search.as_ref().is_none_or(contains)
            && self
                .attached
                .is_none_or(|attached| attached != node.attached.is_empty())
    }
}
