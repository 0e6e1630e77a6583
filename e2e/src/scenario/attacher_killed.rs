//! SIGKILL of the attacher between driver call and status write, for attach and for detach.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;
use crate::wait::Progress;

/// Longer than the scenario: the attacher still waits for the response when it is killed.
const TIMEOUT: Duration = Duration::from_secs(900);

pub(super) const AFTER_PUBLISH: Scenario = Scenario::new(
    "killed-after-publish",
    "The attacher is killed between publish and status write: the next process finishes the attach.",
    |env| Box::pin(after_publish(env)),
)
.with_config(ScenarioConfig {
    timeout: TIMEOUT,
    ..ScenarioConfig::ONE_NODE
});

pub(super) const BEFORE_FINALIZER_REMOVAL: Scenario = Scenario::new(
    "killed-before-release",
    "The attacher is killed between unpublish and finalizer removal: the next process finishes the detach.",
    |env| Box::pin(before_finalizer_removal(env)),
)
.with_config(ScenarioConfig {
    timeout: TIMEOUT,
    ..ScenarioConfig::ONE_NODE
});

async fn after_publish(env: &mut TestEnv<'_>) -> Result<()> {
    let method = Method::ControllerPublishVolume;
    env.driver
        .set_faults(&[FaultRule::hold_response("held", method)])
        .await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;

    env.wait_until_published(&volume, A, true).await?;
    env.attacher.crash().await?;
    let attachments = env.attachments().await?;
    let [attachment] = &attachments[..] else {
        anyhow::bail!("one attachment, not {}", attachments.len())
    };
    ensure!(
        attachment.finalizers().contains(&env.finalizer()),
        "the volume is published and nothing holds its attachment: {:?}",
        attachment.finalizers()
    );
    ensure!(
        !attachment.status.as_ref().is_some_and(|status| status.attached),
        "the VolumeAttachment is attached already"
    );

    env.driver.clear_faults().await?;
    env.attacher.revive().await?;
    env.wait_until_running("web", STEP_TIMEOUT).await
}

async fn before_finalizer_removal(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("web", A, "data").await?;

    let method = Method::ControllerUnpublishVolume;
    env.driver
        .set_faults(&[FaultRule::hold_response("held", method)])
        .await?;
    env.delete_pod("web").await?;
    env.wait_until_published(&volume, A, false).await?;
    env.attacher.crash().await?;
    env.wait_for_attachment(
        &volume,
        A,
        STEP_TIMEOUT,
        "the attachment to be held",
        |attachment| {
            let held = attachment.is_some_and(|attachment| {
                attachment.metadata.deletion_timestamp.is_some() && !attachment.finalizers().is_empty()
            });
            Progress::of(held, || format!("it is {attachment:?}"))
        },
    )
    .await?;

    env.driver.clear_faults().await?;
    env.attacher.revive().await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await
}
