//! A proxy or load balancer in front of the API server responds to a write with a 404 of its own.

use anyhow::Result;

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "stray-not-found",
    about: "A 404 of a proxy for the write of a finalizer is no deletion: the attacher repeats the write, and the volume is attached and detached.",
    config: ScenarioConfig::ONE_NODE,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let proxy = env.put_behind_proxy().await?;
    let volume = env.volume("data", Access::OneNode).await?;
    proxy.lose_next_write();
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    proxy.ensure_lost()?;

    proxy.lose_next_write();
    env.delete_pod("web").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    proxy.ensure_lost()?;
    env.remove_proxy(proxy).await
}
