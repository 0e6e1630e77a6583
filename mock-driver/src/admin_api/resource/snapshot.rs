//! Snapshots and group snapshots.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// CSI id.
    pub id: String,
    /// CreateSnapshotRequest.name; empty for a member of a group.
    pub name: String,
    /// Source volume, which may be deleted.
    pub source: String,
    /// Size of a volume restored from it.
    pub size_bytes: u64,
    /// Creation time.
    pub created: String,
    /// ready_to_use.
    pub ready: bool,
    /// Its pool.
    pub pool: String,
    /// Class parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Its group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

/// A snapshot to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SnapshotNew {
    /// Name; creation is idempotent by name.
    pub name: String,
    /// The volume.
    pub source: String,
    /// Class parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// A group snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct GroupSnapshot {
    /// CSI id.
    pub id: String,
    /// Name of the create request.
    pub name: String,
    /// Creation time.
    pub created: String,
    /// ready_to_use of all of its snapshots.
    pub ready: bool,
    /// Class parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
    /// Its snapshots, sorted by source volume.
    pub snapshots: Vec<Snapshot>,
}

/// A group snapshot to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GroupSnapshotNew {
    /// Name; creation is idempotent by name.
    pub name: String,
    /// Source volumes, each once.
    pub sources: Vec<String>,
    /// Class parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}
