//! Volumes, nodes, attachments and capabilities.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::storage::StorageHealthIssue;

/// A volume of the array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// Its id on the wire.
    pub id: String,
    /// The name by which it was asked for; empty if it was there from the start.
    pub name: String,
    /// Its size.
    pub capacity_bytes: u64,
    /// The uses it was made for, such as `mount(ext4) SINGLE_NODE_WRITER`; none for every use.
    pub capabilities: Vec<String>,
    /// The class parameters it was made with.
    pub parameters: BTreeMap<String, String>,
    /// The snapshot or volume it was made of; absent for one that was made empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The pool it lies in.
    #[serde(default)]
    pub pool: String,
    /// The mutable parameters it was made or modified with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutable_parameters: BTreeMap<String, String>,
    /// The nodes that hold it.
    pub attachments: Vec<Attachment>,
    /// Health issues; absent for a healthy volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthIssue>,
}

/// Something wrong with a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthIssue {
    /// How bad it is: `UNKNOWN`, `DEGRADED`, `INACCESSIBLE` or `DATA_LOSS`.
    pub status: String,
    /// A driver's own word, for machines.
    pub reason: String,
    /// The same for people.
    #[serde(default)]
    pub message: String,
}

/// What is to become of a volume. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeChange {
    /// The size to grow to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// Mutable parameters to set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutable_parameters: Option<BTreeMap<String, String>>,
    /// The new health issues; an empty list makes it healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Vec<HealthIssue>>,
}

/// A volume to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeNew {
    /// The name to ask for it by; asking again gives the same volume.
    pub name: String,
    /// Its size; absent leaves it to the array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity_bytes: Option<u64>,
    /// How it may be used; absent for a filesystem on one node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<String>,
    /// Whether it is a raw block volume.
    #[serde(default)]
    pub block: bool,
    /// The class parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}

/// A volume on a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// The volume.
    pub volume: String,
    /// The node.
    pub node: String,
    /// The number of this attachment, never used twice.
    pub number: u64,
    /// How the node holds it, such as `mount SINGLE_NODE_WRITER`.
    pub capability: String,
    /// Whether it was asked for read-only.
    pub readonly: bool,
}

/// How to attach a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Attach {
    /// The access mode, as CSI spells it; absent for `SINGLE_NODE_WRITER`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<String>,
    /// Whether as a raw block device.
    #[serde(default)]
    pub block: bool,
    /// Whether read-only.
    #[serde(default)]
    pub readonly: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// Its id on the wire.
    pub id: String,
    /// Whether the array knows it. One that it does not know any more is in the list as long as volumes
    /// are attached to it.
    pub registered: bool,
    /// The id that the machine has by now, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub became: Option<String>,
    /// How many volumes it holds.
    pub attached: usize,
    /// How many it takes; absent for as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// How many it says it takes, which may not be true; absent for as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertised_limit: Option<usize>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
    /// The first of the volumes it holds, sorted by id.
    pub volumes: Vec<String>,
    /// Health issues of the storage behind it, without those of all nodes; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<StorageHealthIssue>,
}

/// A node to be registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeNew {
    /// Its id on the wire.
    pub id: String,
    /// How many volumes it takes; 0 for as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<BTreeMap<String, String>>,
}

/// What is to become of a node. What is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeChange {
    /// Another id: to the array it is another node, and volumes stay attached to the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Whether the array knows it. One that it does not know refuses attaching; what is attached stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<bool>,
    /// How many volumes it takes; 0 for as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// How many volumes it says it takes; 0 for as many as come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertised_limit: Option<usize>,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<BTreeMap<String, String>>,
    /// The new health issues of the storage behind it; an empty list makes it healthy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Vec<StorageHealthIssue>>,
}

/// Something the driver says it can do, or could say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capability {
    /// Its name, as the flag `--capabilities` has it.
    pub name: String,
    /// Whether the driver has it.
    pub enabled: bool,
    /// Whether it has it unless told otherwise.
    pub default: bool,
}

/// What is to become of a capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CapabilityChange {
    /// Whether the driver is to have it.
    pub(crate) enabled: bool,
}
