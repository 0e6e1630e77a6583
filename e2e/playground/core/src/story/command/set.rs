//! `set`: the setup, before anything happens.

use std::time::Duration;

use anyhow::Result;
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{MAX_NODES, SyntaxError, Words};
use super::{Command, Syntax};

pub(super) const SYNTAX: Syntax = Syntax {
    forms: &[
        "set nodes N",
        "set latency DURATION",
        "set attach-limit N",
        "set list-interval DURATION",
    ],
    about: "before the first paragraph: the number of nodes (default 2), the time that the driver takes for each attach and \
            detach (default 300ms), the number of volumes that a node can have, the time between two calls of ListVolumes (default \
            60s)",
    is_action: false,
    parse,
};

/// The highest limit that can be set.
const MAX_LIMIT: usize = 256;
/// Slower calls would exceed the attacher's deadline.
const MAX_LATENCY: Duration = Duration::from_secs(10);

/// Its effect is the setup.
#[derive(Debug)]
struct Set;

fn parse(words: &mut Words, setup: &mut Setup) -> Result<Box<dyn Command>, SyntaxError> {
    if setup.has_begun {
        return Err(words.error("`set` belongs before the first paragraph and the first other command"));
    }
    match words.choice(
        "a setting",
        &["nodes", "latency", "attach-limit", "list-interval"],
    )? {
        "nodes" => setup.config.nodes = words.number(MAX_NODES)?,
        "latency" => {
            let latency = words.duration()?;
            if latency > MAX_LATENCY {
                return Err(words.error(format!(
                    "a latency of more than {MAX_LATENCY:?} exceeds the attacher's deadline"
                )));
            }
            setup.config.latency = latency;
        }
        "list-interval" => setup.config.reconcile_sync = words.duration()?,
        _ => {
            let flag = format!("--attach-limit={}", words.number(MAX_LIMIT)?);
            // Flags of a setup are static, so this one is leaked.
            setup.config.driver_flags = vec![&*flag.leak()].leak();
        }
    }
    Ok(Box::new(Set))
}

impl Command for Set {
    fn run<'a>(&'a self, _: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async { Ok(()) })
    }
}
