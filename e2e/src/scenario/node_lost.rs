//! A node goes down with a volume mounted, and an administrator gives it up.

use anyhow::{Context, Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "node-lost",
    about: "A volume mounted on a dead node is detached by force, and only then attached to another.",
    config: ScenarioConfig::DEFAULT,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("before", A, &[&volume]).await?;
    env.wait_until_running("before", STEP_TIMEOUT).await?;

    env.lose_node(A);
    env.pod("after", B, &[&volume]).await?;
    // Without the out-of-service taint the volume is not detached.
    env.wait_for_event("after", "FailedAttachVolume", "Multi-Attach error", STEP_TIMEOUT)
        .await?;
    let calls = env.driver.calls()?;
    ensure!(
        calls.iter().all(|call| call.method != UNPUBLISH),
        "detached from a node that may still write to the volume"
    );

    env.mark_out_of_service(A, "before", &volume).await?;
    env.wait_until_running("after", STEP_TIMEOUT).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;

    let dead = env.node(A).name();
    ensure!(
        env.mount_events()?
            .iter()
            .all(|event| event.node != dead || event.mounted),
        "the dead node unmounted the volume, so nothing was force-detached"
    );
    let calls = env.driver.calls()?;
    let call = |method: &str, node: &str| {
        calls
            .iter()
            .find(|call| call.method == method && call.node == node && call.succeeded())
            .with_context(|| format!("no successful {method} for node {node}"))
    };
    let detached = call(UNPUBLISH, env.node(A).node_id())?;
    let attached = call(PUBLISH, env.node(B).node_id())?;
    let detached_at = detached.end.as_ref().context("a successful call has an end")?.at;
    ensure!(
        detached_at <= attached.start,
        "attached at {} before the detach at {detached_at}",
        attached.start
    );
    Ok(())
}
