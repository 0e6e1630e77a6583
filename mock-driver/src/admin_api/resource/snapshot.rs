//! Snapshots and groups of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Its id on the wire.
    pub id: String,
    /// The name by which it was asked for; empty for a member of a group.
    pub name: String,
    /// The volume it was made of, which may be gone.
    pub source: String,
    /// The size of a volume made of it.
    pub size_bytes: u64,
    /// When it was taken.
    pub created: String,
    /// Whether volumes can be made of it by now.
    pub ready: bool,
    /// The pool it lies in.
    pub pool: String,
    /// The parameters of its class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// The group it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A snapshot to be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotNew {
    /// The name to ask for it by; asking again gives the same snapshot.
    pub name: String,
    /// The volume.
    pub source: String,
    /// The parameters of its class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// Snapshots of several volumes, taken together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshot {
    /// Its id on the wire.
    pub id: String,
    /// The name by which it was asked for.
    pub name: String,
    /// When it was taken.
    pub created: String,
    /// Whether volumes can be made of all of its snapshots by now.
    pub ready: bool,
    /// The parameters of its class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Its snapshots, sorted by the volumes they are of.
    pub snapshots: Vec<Snapshot>,
}

/// A group of snapshots to be taken.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupSnapshotNew {
    /// The name to ask for it by; asking again gives the same group.
    pub name: String,
    /// The volumes, each once.
    pub sources: Vec<String>,
    /// The parameters of its class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}
