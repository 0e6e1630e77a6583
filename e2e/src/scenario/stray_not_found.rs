//! A proxy or load balancer in front of the API server responds to a write with a 404 of its own.

use anyhow::Result;

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "stray-not-found",
    "A 404 of a proxy for the write of a finalizer is no deletion: the attacher repeats the write, and the volume is attached and detached.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let load_balancer = env.put_behind_load_balancer().await?;
    let volume = env.volume("data", Access::OneNode).await?;
    load_balancer.lose_next_write();
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    load_balancer.ensure_lost()?;

    load_balancer.lose_next_write();
    env.delete_pod("web").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    load_balancer.ensure_lost()?;
    env.remove_load_balancer(load_balancer).await
}
