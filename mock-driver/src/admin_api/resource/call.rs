//! Calls and assertions about them.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Caller;

/// A call, in flight or finished.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// Its number in order of arrival, starting at 1.
    pub number: u64,
    /// Its journal sequence number, the cursor of `after` and `before`; absent while in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Method without service.
    pub method: String,
    /// gRPC path.
    pub path: String,
    /// The calling process, from the socket's peer credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Caller>,
    /// Start time.
    pub start: String,
    /// The volume or snapshot of the request, or the name of the object to create; empty if none.
    pub volume: String,
    /// The node of the request; empty if none.
    pub node: String,
    /// Id of the fault rule that affected the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// Its response; absent while in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// Result of the operation if the client disconnected before it completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Answer>,
    /// The request, without secrets; absent if messages were not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub request: Option<Value>,
    /// The response, without secrets; absent if there is none or messages were not requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub response: Option<Value>,
}

/// The response of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// gRPC code, such as `OK` or `NOT_FOUND`.
    pub code: String,
    /// Status message; empty with `OK`.
    pub message: String,
    /// End time.
    pub end: String,
    /// Duration in seconds.
    pub seconds: f64,
}

/// The expected calls, in order. Consecutive calls with the same method and code count as one, because
/// a client may retry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expectation {
    /// The calls.
    #[serde(default)]
    pub expected: Vec<Expected>,
    /// Whether the expected calls may come in any order.
    #[serde(default)]
    pub any_order: bool,
    /// Bounds on the number of calls. With an upper bound and a timeout, the whole time is awaited.
    #[serde(default)]
    pub counts: Vec<ExpectedCount>,
    /// Methods to check; default: the expected ones. Other methods are ignored.
    pub tracked: Option<Vec<String>>,
    /// Only calls whose volume id matches this pattern with `*` and `?`.
    pub volume: Option<String>,
    /// Only calls with a sequence number above this.
    #[serde(default)]
    pub after: u64,
    /// How long to wait for missing calls, such as `10s`; default: do not wait.
    pub timeout: Option<String>,
}

/// An expected call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expected {
    /// Method, with or without service.
    pub method: String,
    /// gRPC code; default: `OK`.
    #[serde(default = "ok", skip_serializing_if = "is_ok")]
    pub code: String,
    /// Pattern of the volume id, snapshot id or name.
    pub volume: Option<String>,
    /// Pattern of the node id.
    pub node: Option<String>,
    /// Conditions on fields of the request by their path, as in `match.request` of a rule.
    #[schema(value_type = Option<Object>)]
    pub request: Option<Value>,
}

/// Bounds on the number of calls that match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpectedCount {
    /// Method, with or without service.
    pub method: String,
    /// gRPC code; default: any. `!OK` for all errors.
    pub code: Option<String>,
    /// Pattern of the volume id, snapshot id or name.
    pub volume: Option<String>,
    /// Pattern of the node id.
    pub node: Option<String>,
    /// Conditions on fields of the request by their path, as in `match.request` of a rule.
    #[schema(value_type = Option<Object>)]
    pub request: Option<Value>,
    /// The smallest number; default: 0.
    pub at_least: u64,
    /// The largest number; default: any. 0 for never.
    pub at_most: Option<u64>,
}

/// Result of an assertion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectationResult {
    /// Result of the comparison.
    pub status: ExpectationStatus,
    /// Number of expected calls that matched, from the first.
    pub matched: usize,
    /// Human-readable result.
    pub message: String,
    /// The checked calls; consecutive equal calls are merged.
    pub calls: Vec<Squashed>,
    /// What was expected, beside what came.
    pub comparison: Vec<Comparison>,
}

/// What was expected, beside what came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Comparison {
    /// The expected call or count; absent for a call that was not expected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// The call or count that came; absent for a call that did not come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub came: Option<String>,
    /// Whether they agree.
    pub agrees: bool,
}

/// Result of comparing the calls with the expected ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum ExpectationStatus {
    /// All expected calls finished, and no others.
    Complete,
    /// Expected calls are missing, and no others finished.
    Incomplete,
    /// An unexpected call finished.
    Mismatch,
}

/// Consecutive calls with the same method and code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Squashed {
    /// The method.
    pub method: String,
    /// The code.
    pub code: String,
    /// Number of calls.
    pub calls: usize,
    /// Sequence number of the last one.
    pub(crate) sequence: u64,
}

fn ok() -> String {
    "OK".to_owned()
}

fn is_ok(code: &str) -> bool {
    code == "OK"
}
