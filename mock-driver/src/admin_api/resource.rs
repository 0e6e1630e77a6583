//! What the admin API speaks of, as JSON. Server, client and OpenAPI document share these types.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub(crate) use self::array::CapabilityChange;
pub use self::array::{
    Attach, Attachment, Capability, HealthIssue, Node, NodeChange, NodeNew, Volume, VolumeChange, VolumeNew,
};
pub use self::call::{
    Answer, Call, Caller, Expectation, ExpectationResult, ExpectationStatus, Expected, Squashed,
};
pub(crate) use self::fault::FaultChange;
pub use self::fault::{BackendFault, FaultRule, Faults, Released, Scenario};
pub(crate) use self::info::Changed;
pub use self::info::{Counts, Info};
pub use self::snapshot::{GroupSnapshot, GroupSnapshotNew, Snapshot, SnapshotNew};
pub use self::storage::{NodeStorage, Pool, Storage, StorageHealthIssue};
pub(crate) use self::storage::{PoolChange, StorageChange};

mod array;
mod call;
mod fault;
mod info;
mod snapshot;
mod storage;

/// Some of many items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// How many there are that the filters let through, on this page and off it.
    pub matched: usize,
    /// What to ask for as `after` to get the next page; absent on the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// The kind of refusal, by the name of a gRPC code.
    pub code: String,
    /// What is wrong and what to do about it.
    pub message: String,
    /// The field or parameter that is wrong, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}
