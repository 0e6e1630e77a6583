//! The array's space, and the health of the storage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A part of the array's space, in one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Its name, by which the class parameter `pool` chooses it.
    pub name: String,
    /// How many bytes it has.
    pub capacity_bytes: u64,
    /// How many of them are promised to volumes and snapshots.
    pub used_bytes: u64,
    /// How many are left.
    pub available_bytes: u64,
    /// Where it lies; absent for everywhere.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
}

/// What is to become of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PoolChange {
    /// How many bytes it has from now on, restarts included: no fewer than are promised.
    pub(crate) capacity_bytes: u64,
}

/// Health issues of the storage behind nodes, as NodeGetStorageHealth reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Health issues of the storage behind all nodes.
    pub health: Vec<StorageHealthIssue>,
    /// Health issues of the storage behind single nodes, without healthy ones.
    pub nodes: Vec<NodeStorage>,
}

/// Health issues of the storage behind one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorage {
    /// The node.
    pub node: String,
    /// Its health issues.
    pub health: Vec<StorageHealthIssue>,
}

/// What is to become of the storage behind all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StorageChange {
    /// The new health issues; an empty list makes it healthy.
    pub(crate) health: Vec<StorageHealthIssue>,
}

/// Something wrong with storage as nodes see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StorageHealthIssue {
    /// How bad it is: `UNKNOWN`, `DEGRADED` or `UNREACHABLE`.
    pub status: String,
    /// A driver's own word, for machines.
    pub reason: String,
    /// The same for people.
    #[serde(default)]
    pub message: String,
    /// The only use of volumes it concerns, such as `block SINGLE_NODE_WRITER` or
    /// `mount(ext4) MULTI_NODE_MULTI_WRITER`; absent for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capability: Option<String>,
}
