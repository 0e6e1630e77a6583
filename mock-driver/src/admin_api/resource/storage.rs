//! Storage pools and storage health.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::array::StorageHealthIssue;

/// A storage pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Its name, the value of the class parameter `pool`.
    pub name: String,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Allocated bytes.
    pub used_bytes: u64,
    /// Available bytes.
    pub available_bytes: u64,
    /// Accessible topology; absent if accessible from every node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
}

/// Partial update of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct PoolChange {
    /// The new capacity in bytes, also after restarts; at least the allocated bytes.
    pub(crate) capacity_bytes: u64,
}

/// Storage health issues, as NodeGetStorageHealth reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    /// Health issues of the storage of all nodes.
    pub health: Vec<StorageHealthIssue>,
    /// Health issues of the storage of single nodes, without healthy ones.
    pub nodes: Vec<NodeStorage>,
}

/// Health issues of the storage of one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorage {
    /// The node.
    pub node: String,
    /// Its health issues.
    pub health: Vec<StorageHealthIssue>,
}

/// Partial update of the storage of all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct StorageChange {
    /// The new health issues; an empty list makes it healthy.
    pub(crate) health: Vec<StorageHealthIssue>,
}
