//! The driver as a whole.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What the driver is and how it was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Info {
    /// Its name in Kubernetes.
    pub driver: String,
    /// The version of the program.
    pub version: String,
    /// The id of the node it stands on, if it has a Node service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// When the admin API came up.
    pub(crate) started: String,
    /// How long attaching and detaching take, in seconds.
    pub(crate) latency_seconds: f64,
    /// How much there is of everything.
    pub counts: Counts,
}

/// How much there is of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Volumes of the array.
    pub volumes: usize,
    /// Registered nodes.
    pub nodes: usize,
    /// Volumes on nodes.
    pub attachments: usize,
    /// Snapshots of the array.
    pub snapshots: usize,
    /// Groups of snapshots.
    pub groups: usize,
    /// Calls that run.
    pub(crate) running: usize,
    /// Calls that have ended.
    pub calls: u64,
    /// Those of them that ended with an error.
    pub failed: u64,
    /// Fault rules in force.
    pub faults: usize,
}

/// That something has changed, and how much there is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Changed {
    /// A number that grows with each change.
    pub(crate) revision: u64,
    /// How much there is of everything.
    pub(crate) counts: Counts,
}
