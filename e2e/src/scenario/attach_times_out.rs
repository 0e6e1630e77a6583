//! The driver attaches but its response is lost: the attacher cannot know whether the volume is published.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::UNPUBLISH;
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "attach-times-out",
    "A publish that times out may have succeeded: the volume is unpublished when its VolumeAttachment is deleted.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    timeout: Duration::from_secs(2),
    ..ScenarioConfig::ONE_NODE
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let lost = FaultRule::hang_after_effect("lost-answer", Method::ControllerPublishVolume);
    env.driver.set_faults(&[lost]).await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;

    env.wait_until_published(&volume, A, true).await?;
    let (attachment, _) = env.wait_for_attach_error(&volume, A).await?;
    let status = attachment.status.clone().context("it was found by its status")?;
    ensure!(
        !status.attached,
        "attached is true without a response from the driver"
    );
    ensure!(
        attachment.finalizers().contains(&env.finalizer()),
        "nothing holds it: {:?}",
        attachment.finalizers()
    );

    // The attach/detach controller marks the volume as uncertain when it sees the failure. Without that, it would not detach the
    // volume after the pod's deletion.
    env.wait_for_event("web", "FailedAttachVolume", "DeadlineExceeded", STEP_TIMEOUT)
        .await?;
    env.delete_pod("web").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    let node_id = env.node(A).node_id();
    let unpublished = env
        .driver
        .calls()?
        .iter()
        .any(|call| call.method == UNPUBLISH && call.node == node_id && call.succeeded());
    ensure!(unpublished, "the attacher never unpublished the volume");
    Ok(())
}
