//! Fault rules of the mock driver, in the format of its fault file.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

/// A fault rule: `docs/faults.md` of the mock driver describes the fields.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub struct FaultRule(Value);

/// The calls that a scenario can make fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Method {
    /// Attach.
    ControllerPublishVolume,
    /// Detach.
    ControllerUnpublishVolume,
}

// === impl FaultRule ===

impl FaultRule {
    /// A rule with this action for the calls of a method, before or after their effect.
    pub fn of(id: &str, method: &str, is_after_effect: bool, action: Value) -> Self {
        let phase = match is_after_effect {
            true => "after",
            false => "before",
        };
        Self(json!({"id": id, "match": {"method": method}, "phase": phase, "action": action}))
    }

    /// Fails the call before its effect.
    pub fn fail(id: &str, method: Method, code: &str, message: &str) -> Self {
        let action = json!({"code": code, "message": message});
        Self(json!({"id": id, "match": {"method": method}, "phase": "before", "action": action}))
    }

    /// Executes the call, then hangs until the client cancels it.
    pub fn hang_after_effect(id: &str, method: Method) -> Self {
        Self::after(id, method, json!({"hang": "client-cancel"}))
    }

    /// Executes the call, then holds the response until the rule is removed.
    pub fn hold_response(id: &str, method: Method) -> Self {
        Self::after(id, method, json!({"hang": "release"}))
    }

    /// Executes the call, then delays the response.
    pub fn delay_response(id: &str, method: Method, delay: Duration) -> Self {
        Self::after(id, method, json!({"delay": format!("{}ms", delay.as_millis())}))
    }

    fn after(id: &str, method: Method, action: Value) -> Self {
        Self(json!({"id": id, "match": {"method": method}, "phase": "after", "action": action}))
    }

    /// Limits the rule to one volume.
    #[must_use]
    pub fn for_volume(mut self, handle: &str) -> Self {
        self.0["match"]["volume"] = handle.into();
        self
    }

    /// Limits the rule to one node, by the driver's id of it.
    #[must_use]
    pub fn for_node(mut self, node_id: &str) -> Self {
        self.0["match"]["node"] = node_id.into();
        self
    }

    /// Limits the rule to this number of calls.
    #[must_use]
    pub fn times(mut self, times: usize) -> Self {
        self.0["times"] = times.into();
        self
    }

    /// Name of the rule in the journal.
    pub fn id(&self) -> &str {
        self.0["id"].as_str().unwrap_or_default()
    }

    /// Whether the rule fails calls after their effect.
    pub(super) fn acts_after_effect(&self) -> bool {
        self.0["phase"] == "after"
    }
}
