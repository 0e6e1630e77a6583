//! Calls, and which ones a test expects.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A call, running or ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Its number in the order of arrival, from 1 on.
    pub number: u64,
    /// Its place in the order of ends, the cursor of `after` and `before`; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u64>,
    /// The method's name without its service.
    pub method: String,
    /// Its path on the wire.
    pub path: String,
    /// Who called, as the socket tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Caller>,
    /// When it arrived.
    pub start: String,
    /// The volume or snapshot it names, or the name of what it wants created; empty if none.
    pub volume: String,
    /// The node it names; empty if none.
    pub node: String,
    /// The fault rule that has a hand in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Its answer; absent while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// How its work ended after its client had left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Answer>,
    /// The request, without secrets; absent where messages were not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub request: Option<Value>,
    /// The response, without secrets; absent as long as there is none or it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub response: Option<Value>,
}

/// A process that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Caller {
    /// Its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// Its user.
    pub uid: u32,
}

/// The answer of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// Its code, such as `OK` or `NOT_FOUND`.
    pub code: String,
    /// Its text; empty with `OK`.
    pub message: String,
    /// When it was known.
    pub end: String,
    /// How long the call had taken by then.
    pub seconds: f64,
}

/// The calls a test expects, in order. Neighbours with the same method and code count as one, as
/// often as they come: a caller may repeat itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expectation {
    /// The calls.
    pub expected: Vec<Expected>,
    /// The methods to look at; absent for those that are expected. All others are passed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracked: Option<Vec<String>>,
    /// Looks at calls about this volume only; a pattern with `*` and `?`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Looks at calls that ended after this place only.
    #[serde(default)]
    pub after: u64,
    /// How long to wait for calls that are missing, such as `10s`; absent for not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
}

/// A call that is expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expected {
    /// The method, with or without its service.
    pub method: String,
    /// Its code; absent for `OK`.
    #[serde(default = "ok", skip_serializing_if = "is_ok")]
    pub code: String,
}

/// Result of an assertion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectationResult {
    /// Whether the calls came.
    pub status: ExpectationStatus,
    /// How many of the expected calls came, from the first on.
    pub matched: usize,
    /// The same in words.
    pub message: String,
    /// The calls that were looked at, neighbours that are alike put together.
    pub calls: Vec<Squashed>,
}

/// Whether expected calls came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExpectationStatus {
    /// All of them, and nothing else.
    Complete,
    /// The first ones, and nothing else.
    Incomplete,
    /// Another one came.
    Mismatch,
}

/// Calls with the same method and code that came one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Squashed {
    /// The method.
    pub method: String,
    /// The code.
    pub code: String,
    /// How many.
    pub calls: usize,
    /// The place of the last of them.
    pub(crate) place: u64,
}

fn ok() -> String {
    "OK".to_owned()
}

fn is_ok(code: &str) -> bool {
    code == "OK"
}
