//! Fault rules.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// The fault rules, in the order in which they are asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Faults {
    /// The seed of all chance.
    pub seed: u64,
    /// The state that rules can set and wait for.
    pub state: String,
    /// The rules.
    pub rules: Vec<FaultRule>,
}

/// A fault rule and how it fares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FaultRule {
    /// Its id.
    pub id: String,
    /// Where it comes from: `admin`, `file` or `scenario`.
    pub origin: String,
    /// Whether it is switched on.
    pub enabled: bool,
    /// How many calls matched it.
    pub seen: u64,
    /// How often it fired.
    pub fired: u64,
    /// How often it may fire; absent for every time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub times: Option<u64>,
    /// How many calls it holds up now.
    pub holds: u64,
    /// As it was written, in the form of the fault file.
    #[schema(value_type = Object)]
    pub rule: Value,
}

/// What is to become of a fault rule, a trouble or a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct FaultChange {
    /// Whether it is switched on.
    pub(crate) enabled: bool,
}

/// How many calls were let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Released {
    /// How many calls the rules had in their hands.
    pub calls: u64,
}

/// A trouble of the array itself and how it fares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trouble {
    /// Its id.
    pub id: String,
    /// Where it comes from: `admin`, `file` or `scenario`.
    pub origin: String,
    /// Whether it is there.
    pub enabled: bool,
    /// How often a call met it.
    pub(crate) met: u64,
    /// As it was written, in the form of the fault file.
    #[schema(value_type = Object)]
    pub(crate) trouble: Value,
}

/// A built-in set of rules and troubles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// What it is, in a sentence.
    pub about: String,
    /// Whether it is played.
    pub enabled: bool,
}
