//! A node goes down with a volume mounted, and an administrator adds the out-of-service taint.

use anyhow::{Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, TestEnv};
use super::{Scenario, move_order};
use crate::driver::journal::UNPUBLISH;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "node-lost",
    "A volume mounted on a dead node is force-detached before it is attached to another node.",
    |env| Box::pin(run(env)),
);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("before", A, "data").await?;

    env.lose_node(A).await?;
    env.pod("after", B, &[&volume]).await?;
    // Without the out-of-service taint the volume is not detached.
    env.wait_for_event("after", "FailedAttachVolume", "Volume is already", STEP_TIMEOUT)
        .await?;
    env.ensure_calls(UNPUBLISH, &volume, 0)?;

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
    move_order::ensure_detached_before_attach(env, &volume, A, B)?;
    Ok(())
}
