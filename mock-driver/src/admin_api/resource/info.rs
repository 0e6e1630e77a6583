//! Driver information.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Driver version and configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    /// Its name in Kubernetes.
    pub driver: String,
    /// The version of the program.
    pub version: String,
    /// Id of its node, if it has a Node service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whether it has an array; a proxy and a process with `--mode=node` have none.
    pub(crate) has_array: bool,
    /// Identity of the array in `media.json` of its media directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) array: Option<String>,
    /// Start time of the admin API.
    pub(crate) started: String,
    /// Duration of attach and detach in seconds.
    pub(crate) latency_seconds: f64,
    /// Object counts.
    pub counts: Counts,
}

/// Object counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Volumes of the array.
    pub volumes: usize,
    /// Registered nodes.
    pub nodes: usize,
    /// Attachments.
    pub attachments: usize,
    /// Snapshots of the array.
    pub snapshots: usize,
    /// Group snapshots.
    pub groups: usize,
    /// In-flight calls.
    pub(crate) running: usize,
    /// Finished calls.
    pub calls: u64,
    /// Failed calls.
    pub failed: u64,
    /// Active fault rules.
    pub faults: usize,
}

/// Change event with the present object counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Changed {
    /// A number that grows with each change.
    pub(crate) revision: u64,
    /// Object counts.
    pub(crate) counts: Counts,
}
