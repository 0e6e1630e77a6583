//! `wait` and `expect`: conditions.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::BoxFuture;

use super::super::Setup;
use super::super::stage::Stage;
use super::super::words::{SyntaxError, Words};
use super::condition::{Condition, FORMS};
use super::{Command, Syntax};
use csi_e2e::scenario::test_env::STEP_TIMEOUT;

pub(super) const WAIT: Syntax = Syntax {
    forms: FORMS,
    about: "waits for a condition, by default for at most two minutes; the story fails if it does not come true",
    is_action: false,
    parse: |words, setup| parse(words, setup, STEP_TIMEOUT),
};
pub(super) const EXPECT: Syntax = Syntax {
    forms: &["expect CONDITION [within DURATION]"],
    about: "as `wait`, by default for at most ten seconds",
    is_action: false,
    parse: |words, setup| parse(words, setup, SOON),
};

/// How long `expect` waits.
const SOON: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Wait {
    condition: Condition,
    within: Duration,
}

fn parse(words: &mut Words, setup: &mut Setup, default: Duration) -> Result<Box<dyn Command>, SyntaxError> {
    let condition = Condition::parse(words, setup)?;
    let within = match words.accept("within") {
        true => words.duration()?,
        false => default,
    };
    Ok(Box::new(Wait { condition, within }))
}

impl Command for Wait {
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async {
            let waited = tokio::time::timeout(self.within, self.condition.wait(stage, self.within));
            waited
                .await
                .with_context(|| format!("not within {:?}", self.within))?
        })
    }
}
