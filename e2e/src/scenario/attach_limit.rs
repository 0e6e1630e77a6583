//! A node takes only so many volumes: the driver says how many, CSINode has it, and the scheduler goes by it.

use anyhow::{Result, ensure};

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::journal::PUBLISH;
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "attach-limit",
    about: "A pod whose volume is one too many for its node is scheduled when another volume has left.",
    config: ScenarioConfig {
        nodes: 1,
        driver_flags: &["--attach-limit=1"],
        ..ScenarioConfig::DEFAULT
    },
    // The second attach may be refused until the first volume is detached; its retry can succeed from a cache without
    // the error.
    go: ExpectedOutcome::Fails {
        issue: KnownIssue(21),
        expected_error: "it is attached and still has an attachError",
        always: false,
    },
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let first = env.volume("first", Access::OneNode).await?;
    let second = env.volume("second", Access::OneNode).await?;
    env.pod("first", A, &[&first]).await?;
    env.wait_until_running("first", STEP_TIMEOUT).await?;

    env.pod("second", A, &[&second]).await?;
    let full = "node(s) exceed max volume count";
    env.wait_for_event("second", "FailedScheduling", full, STEP_TIMEOUT)
        .await?;
    let calls = env.driver.calls()?;
    ensure!(
        calls
            .iter()
            .all(|call| call.method != PUBLISH || call.volume != second.handle),
        "the driver was asked for a volume beyond its limit"
    );

    env.delete_pod("first").await?;
    env.wait_until_running("second", STEP_TIMEOUT).await?;
    env.wait_until_detached(&first, A, STEP_TIMEOUT).await
}
