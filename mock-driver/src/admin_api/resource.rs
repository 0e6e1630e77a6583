//! JSON types of the admin API, shared by server, client and OpenAPI document.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub(crate) use self::array::CapabilityChange;
pub use self::array::{
    Attach, Attachment, Capability, Node, NodeChange, NodeNew, Volume, VolumeChange, VolumeNew,
};
pub use self::call::{
    Answer, Call, Comparison, Expectation, ExpectationResult, ExpectationStatus, Expected, ExpectedCount,
    Squashed,
};
pub(crate) use self::fault::FaultChange;
pub use self::fault::{BackendFault, Faults, Released, Scenario};
pub(crate) use self::info::Changed;
pub use self::info::{Counts, Info};
pub use self::snapshot::{GroupSnapshot, GroupSnapshotNew, Snapshot, SnapshotNew};
pub use self::storage::{NodeStorage, Pool, Storage};
pub(crate) use self::storage::{PoolChange, StorageChange};
pub use crate::array::{HealthIssue, StorageHealthIssue};
pub use crate::fault::Report as FaultRule;
pub use crate::journal::Peer as Caller;

mod array;
mod call;
mod fault;
mod info;
mod snapshot;
mod storage;

/// A page of items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// Total number of items that match the filters.
    pub matched: usize,
    /// Value of `after` for the next page; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Error of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// Name of a gRPC code.
    pub code: String,
    /// Cause and remedy.
    pub message: String,
    /// The invalid field or parameter, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
