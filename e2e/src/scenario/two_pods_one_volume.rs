//! Two pods on two nodes need the same single-node volume.

use anyhow::{Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario, move_order};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "two-pods-one-volume",
    about: "The second pod's Event names the first pod; the pod gets the volume when the first pod is gone.",
    config: ScenarioConfig::DEFAULT,
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("holder", A, &[&volume]).await?;
    env.wait_until_running("holder", STEP_TIMEOUT).await?;

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
