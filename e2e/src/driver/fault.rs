//! Fault rules of the mock driver, as a scenario writes them.

use std::time::Duration;

use serde::Serialize;

/// What goes wrong, with which calls, when and how often.
#[derive(Clone, Debug, Serialize)]
pub struct FaultRule {
    id: String,
    #[serde(rename = "match")]
    matches: Match,
    phase: Phase,
    action: Action,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u64>,
}

/// The calls a scenario can spoil.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Method {
    /// Attach.
    ControllerPublishVolume,
    /// Detach.
    ControllerUnpublishVolume,
}

/// When a rule acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Instead of the effect, or ahead of it where the rule only delays.
    Before,
    /// When the effect has happened.
    After,
}

#[derive(Clone, Debug, Serialize)]
struct Match {
    method: Method,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Action {
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hang: Option<String>,
}

// === impl FaultRule ===

impl FaultRule {
    fn new(id: &str, method: Method, phase: Phase, action: Action) -> Self {
        let matches = Match {
            method,
            volume: None,
            node: None,
        };
        Self {
            id: id.to_owned(),
            matches,
            phase,
            action,
            times: None,
        }
    }

    /// Answers with an error instead of doing anything.
    pub fn fail(id: &str, method: Method, code: &str, message: &str) -> Self {
        let action = Action {
            code: Some(code.to_owned()),
            message: Some(message.to_owned()),
            ..Action::default()
        };
        Self::new(id, method, Phase::Before, action)
    }

    /// Does the work, then hangs until the client gives up.
    pub fn hang_after_effect(id: &str, method: Method) -> Self {
        let action = Action {
            hang: Some("client-cancel".to_owned()),
            ..Action::default()
        };
        Self::new(id, method, Phase::After, action)
    }

    /// Does the work, then waits before it answers.
    pub fn delay_answer(id: &str, method: Method, delay: Duration) -> Self {
        let action = Action {
            delay: Some(format!("{}ms", delay.as_millis())),
            ..Action::default()
        };
        Self::new(id, method, Phase::After, action)
    }

    /// Limits the rule to one volume.
    #[must_use]
    pub fn for_volume(mut self, handle: &str) -> Self {
        self.matches.volume = Some(handle.to_owned());
        self
    }

    /// Limits the rule to one node, by the driver's id of it.
    #[must_use]
    pub fn for_node(mut self, node_id: &str) -> Self {
        self.matches.node = Some(node_id.to_owned());
        self
    }

    /// Lets the rule act this many times only.
    #[must_use]
    pub fn times(mut self, times: u64) -> Self {
        self.times = Some(times);
        self
    }

    /// Name of the rule in the journal.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether a call the rule made fail had its effect all the same.
    pub(super) fn acts_after_effect(&self) -> bool {
        self.phase == Phase::After
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_written_as_the_driver_reads_them() {
        let rule = FaultRule::fail(
            "full",
            Method::ControllerPublishVolume,
            "RESOURCE_EXHAUSTED",
            "no slot",
        )
        .for_volume("vol-1")
        .times(2);
        assert_eq!(
            serde_json::to_value(&rule).expect("a rule is plain data"),
            json!({
                "id": "full",
                "match": {"method": "ControllerPublishVolume", "volume": "vol-1"},
                "phase": "before",
                "action": {"code": "RESOURCE_EXHAUSTED", "message": "no slot"},
                "times": 2,
            })
        );
        let rule = FaultRule::hang_after_effect("lost", Method::ControllerUnpublishVolume).for_node("node-0");
        assert_eq!(
            serde_json::to_value(&rule).expect("a rule is plain data"),
            json!({
                "id": "lost",
                "match": {"method": "ControllerUnpublishVolume", "node": "node-0"},
                "phase": "after",
                "action": {"hang": "client-cancel"},
            })
        );
    }
}
