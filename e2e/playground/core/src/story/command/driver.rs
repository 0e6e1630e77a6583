//! `driver:`: fault rules of the mock driver.

use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;
use serde_json::{Value, json};

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::{Command, Syntax};
use csi_e2e::driver::fault::FaultRule;

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &[
        "driver: METHOD fails with CODE [\"TEXT\"] [after its effect] [N times] [for VOLUME] [on NODE]",
        "driver: METHOD pretends CODE [N times] [for VOLUME] [on NODE]",
        "driver: METHOD takes DURATION [N times] [for VOLUME] [on NODE]",
        "driver: METHOD hangs [N times] [for VOLUME] [on NODE]",
        "driver: works again",
    ],
    about: "adds a fault rule; `pretends` responds without doing anything, `hangs` does it and does not respond. `works again` \
            removes all rules",
    is_action: true,
    parse,
};

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

#[derive(Debug)]
struct AddRule {
    method: &'static str,
    action: Value,
    is_after_effect: bool,
    times: Option<usize>,
    volume: Option<String>,
    node: Option<usize>,
}

#[derive(Debug)]
struct RemoveRules;

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    if words.accept("works again") {
        return Ok(Box::new(RemoveRules));
    }
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
    Ok(Box::new(AddRule {
        method,
        action,
        is_after_effect,
        times,
        volume,
        node,
    }))
}

/// In the format of the driver.
fn milliseconds(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

impl Command for AddRule {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let id = format!("rule-{}", stage.rules.len() + 1);
            let mut rule = FaultRule::of(&id, self.method, self.is_after_effect, self.action.clone());
            if let Some(times) = self.times {
                rule = rule.times(times);
            }
            if let Some(volume) = &self.volume {
                rule = rule.for_volume(&stage.volume(volume).await?.handle);
            }
            if let Some(node) = self.node {
                rule = rule.for_node(stage.env.node(node).node_id());
            }
            stage.rules.push(rule);
            stage.env.driver.set_faults(&stage.rules).await
        })
    }
}

impl Command for RemoveRules {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            stage.rules.clear();
            stage.env.driver.clear_faults().await
        })
    }
}
