//! Fault rules of the mock driver.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};

use super::super::Setup;
use super::super::state::StoryState;
use super::super::words::{SyntaxError, Words};
use csi_e2e::driver::fault::FaultRule;

pub(super) const FORMS: &[&str] = &[
    "driver: METHOD fails with CODE [\"TEXT\"] [after its effect] [N times] [for VOLUME] [on NODE]",
    "driver: METHOD pretends CODE [N times] [for VOLUME] [on NODE]",
    "driver: METHOD takes DURATION [N times] [for VOLUME] [on NODE]",
    "driver: METHOD hangs [N times] [for VOLUME] [on NODE]",
    "driver: works again",
];
/// The methods that a rule can match.
pub(super) const METHODS: &[&str] = &[
    "ControllerPublishVolume",
    "ControllerUnpublishVolume",
    "ControllerGetCapabilities",
    "ControllerGetVolume",
    "ListVolumes",
    "GetPluginCapabilities",
    "GetPluginInfo",
    "Probe",
];
/// Status codes of gRPC.
const CODES: &[&str] = &[
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// The highest number of times.
const MAX_TIMES: usize = 10_000;

/// A fault rule, by the names of the story.
#[derive(Debug)]
pub(crate) struct Rule {
    method: &'static str,
    action: Value,
    is_after_effect: bool,
    times: Option<usize>,
    volume: Option<String>,
    node: Option<usize>,
}

// === impl Rule ===

impl Rule {
    pub(super) fn parse(words: &mut Words, setup: &Setup) -> Result<Self, SyntaxError> {
        let method = words.choice("`works again` or a method", METHODS)?;
        let mut is_after_effect = false;
        let action = match words.choice("what it does", &["fails", "pretends", "takes", "hangs"])? {
            "fails" => {
                words.expect("with")?;
                let code = words.choice("a status code", &CODES[1..])?;
                let message = words.text();
                is_after_effect = words.accept("after its effect");
                json!({"code": code, "message": message})
            }
            "pretends" => json!({"pretend": words.choice("a status code", CODES)?}),
            "takes" => {
                is_after_effect = true;
                json!({"delay": milliseconds(words.duration()?)})
            }
            _ => {
                is_after_effect = true;
                json!({"hang": "release"})
            }
        };
        let times = match words.peek().parse::<usize>() {
            Ok(_) => {
                let times = words.number(MAX_TIMES)?;
                words.expect("times")?;
                Some(times)
            }
            Err(_) => None,
        };
        let (volume, node) = words.volume_and_node(setup)?;
        Ok(Self {
            method,
            action,
            is_after_effect,
            times,
            volume,
            node,
        })
    }

    /// The volume whose calls it matches; `None` for all.
    pub(crate) fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }

    /// The driver's rule. Creates its volume unless that exists.
    pub(super) async fn of(&self, state: &mut StoryState<'_, '_>) -> Result<FaultRule> {
        let id = format!("rule-{}", state.rules.len() + 1);
        let mut rule = FaultRule::of(&id, self.method, self.is_after_effect, self.action.clone());
        if let Some(times) = self.times {
            rule = rule.times(times);
        }
        if let Some(volume) = &self.volume {
            rule = rule.for_volume(&state.volume(volume).await?.handle);
        }
        if let Some(node) = self.node {
            rule = rule.for_node(state.env.node(node).node_id());
        }
        Ok(rule)
    }
}

/// In the format of the driver.
fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}
