//! A workload moves: its pod on one node is deleted and a new one is created on another node, as a Deployment
//! does.

use anyhow::{Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, TestEnv};
use super::{Scenario, move_order};

pub(super) const SCENARIO: Scenario = Scenario::new(
    "pod-moves",
    "A volume moves with its pod to another node: unmount, detach, attach, mount, in this order.",
    |env| Box::pin(run(env)),
);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("before", A, "data").await?;

    // Both at once: the new pod is created before the old one is deleted.
    env.delete_pod("before").await?;
    env.pod("after", B, &[&volume]).await?;
    env.wait_until_running("after", STEP_TIMEOUT).await?;

    move_order::ensure_moved_in_order(env, &volume, A, B)?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    let published = env.driver.published().await?;
    let nodes: Vec<_> = published.get(&volume.handle).into_iter().flatten().collect();
    ensure!(
        nodes == [env.node(B).node_id()],
        "after the move the volume is published to {nodes:?}"
    );
    Ok(())
}
