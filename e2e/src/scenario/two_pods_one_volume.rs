//! Two pods on two nodes need the same single-node volume.

use anyhow::{Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, TestEnv};
use super::{Scenario, move_order};

pub(super) const SCENARIO: Scenario = Scenario::new(
    "two-pods-one-volume",
    "The second pod's Event names the first pod; the pod gets the volume when the first pod is gone.",
    |env| Box::pin(run(env)),
);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("holder", A, "data").await?;

    env.pod("waiter", B, &[&volume]).await?;
    let message = env
        .wait_for_event("waiter", "FailedAttachVolume", "Volume is already", STEP_TIMEOUT)
        .await?;
    ensure!(
        message.contains("pod(s) holder"),
        "the Event does not name the pod that uses the volume: {message}"
    );
    env.ensure_not_running("waiter").await?;
    let attachments = env.attachments().await?;
    ensure!(
        attachments.len() == 1,
        "{} attachments for a volume with one node",
        attachments.len()
    );

    env.delete_pod("holder").await?;
    env.wait_until_running("waiter", STEP_TIMEOUT).await?;
    move_order::ensure_moved_in_order(env, &volume, A, B)
}
