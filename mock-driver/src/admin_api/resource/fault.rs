//! Fault rules.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::FaultRule;
use crate::fault::Origin;

/// The fault rules in evaluation order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Faults {
    /// Seed of all random choices.
    pub seed: u64,
    /// State that `set-state` sets and `match.while` reads.
    pub state: String,
    /// The rules.
    pub rules: Vec<FaultRule>,
}

/// Partial update of a fault rule, backend fault or scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FaultChange {
    /// Whether it is enabled.
    pub(crate) enabled: bool,
}

/// Result of releasing blocked calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// Number of calls that the rules blocked.
    pub calls: u64,
}

/// A backend fault with its counter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendFault {
    /// Its id.
    pub id: String,
    /// Where it comes from: `admin`, `file` or `scenario`.
    #[schema(value_type = String)]
    pub origin: Origin,
    /// Whether it is enabled.
    pub enabled: bool,
    /// Number of calls that it affected.
    pub(crate) fired: u64,
    /// The definition, as in the fault file.
    #[schema(value_type = Object)]
    pub(crate) fault: Value,
}

/// A built-in set of rules and backend faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Description.
    pub about: String,
    /// Whether it is active.
    pub enabled: bool,
}
