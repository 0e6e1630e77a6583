//! Volumes, nodes, attachments and capabilities.

use std::collections::BTreeMap;

use clap::Args;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::array::{HealthIssue, StorageHealthIssue};

/// A volume of the array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    /// CSI id.
    pub id: String,
    /// CreateVolumeRequest.name; empty for volumes of `--volumes`.
    pub name: String,
    /// Its size.
    pub capacity_bytes: u64,
    /// Capabilities of CreateVolumeRequest, such as `mount(ext4) SINGLE_NODE_WRITER`; empty for all.
    pub capabilities: Vec<String>,
    /// Parameters of CreateVolumeRequest.
    pub parameters: BTreeMap<String, String>,
    /// Source snapshot or volume; absent for a volume that was created empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Its pool.
    #[serde(default)]
    pub pool: String,
    /// Mutable parameters.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub mutable_parameters: BTreeMap<String, String>,
    /// Published node ids.
    pub attachments: Vec<Attachment>,
    /// Health issues; absent for a healthy volume.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<HealthIssue>,
}

/// Partial update of a volume. Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeChange {
    /// The new size.
    pub capacity_bytes: Option<u64>,
    /// Mutable parameters to set.
    pub mutable_parameters: Option<BTreeMap<String, String>>,
    /// The new health issues; an empty list makes it healthy.
    pub health: Option<Vec<HealthIssue>>,
}

/// A volume to create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VolumeNew {
    /// Name; creation is idempotent by name.
    pub name: String,
    /// Size; default: the array's.
    pub capacity_bytes: Option<u64>,
    /// Access mode; default: `SINGLE_NODE_WRITER`.
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
    /// Number of this attachment; unique.
    pub number: u64,
    /// The capability, such as `mount SINGLE_NODE_WRITER`.
    pub capability: String,
    /// Whether it is read-only.
    pub readonly: bool,
}

/// How to attach a volume.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[group(skip)]
pub struct Attach {
    /// The access mode, as CSI spells it; absent for `SINGLE_NODE_WRITER`.
    #[arg(long)]
    pub access_mode: Option<String>,
    /// Whether as a raw block device.
    #[serde(default)]
    #[arg(long)]
    pub block: bool,
    /// Whether read-only.
    #[serde(default)]
    #[arg(long)]
    pub readonly: bool,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Node {
    /// CSI id.
    pub id: String,
    /// Whether it is registered with the array. A deregistered node is listed as long as volumes
    /// are attached to it.
    pub registered: bool,
    /// Its present id, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub renamed_to: Option<String>,
    /// Number of attached volumes.
    pub attached: usize,
    /// Maximum number of attached volumes; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// max_volumes_per_node as NodeGetInfo reports it; absent if unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advertised_limit: Option<usize>,
    /// Its topology.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub topology: BTreeMap<String, String>,
    /// The first of its attached volumes, sorted by id.
    pub volumes: Vec<String>,
    /// Health issues of its storage, without those of all nodes; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub health: Vec<StorageHealthIssue>,
}

/// A node to register.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeNew {
    /// CSI id.
    pub id: String,
    /// Maximum number of attached volumes. 0 means unlimited.
    pub limit: Option<usize>,
    /// Its topology.
    pub topology: Option<BTreeMap<String, String>>,
}

/// Partial update of a node. Absent fields stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeChange {
    /// Another id: to the array it is another node, and volumes stay attached to the old one.
    pub id: Option<String>,
    /// Whether it is registered with the array. No volume can be attached to a deregistered node; attached volumes stay.
    pub registered: Option<bool>,
    /// Maximum number of attached volumes. 0 means unlimited.
    pub limit: Option<usize>,
    /// max_volumes_per_node of NodeGetInfo. 0 means unlimited.
    pub advertised_limit: Option<usize>,
    /// Its topology.
    pub topology: Option<BTreeMap<String, String>>,
    /// The new health issues of its storage; an empty list makes it healthy.
    pub health: Option<Vec<StorageHealthIssue>>,
}

/// A CSI capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capability {
    /// Its name, as in `--capabilities`.
    pub name: String,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Whether it is enabled by default.
    pub default: bool,
}

/// Partial update of a capability.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct CapabilityChange {
    /// Whether it is enabled.
    pub(crate) enabled: bool,
}
