//! A pod's node does not have the driver yet: its CSINode has no entry for it.

use anyhow::{Result, ensure};
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::Api;
use kube::api::Patch;
use serde_json::json;

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::cluster::KubernetesVersion;
use crate::driver::journal::PUBLISH;
use crate::fixture::Access;
use crate::objects;

/// The attach/detach controller creates the VolumeAttachment, and the attacher reports that CSINode lacks the driver.
pub(super) const SCENARIO: Scenario = Scenario::new(
    "driver-not-installed",
    "An attach to a node without the driver fails without a driver call, and succeeds once the driver is registered.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE)
.with_go(ExpectedOutcome::MAY_PUBLISH_TWICE);

/// VolumeLimitScaling (KEP-5030), on by default since Kubernetes 1.37: the scheduler keeps the pod off the node.
pub(super) const PREVENTS_SCHEDULING: Scenario = Scenario::new(
    "volume-limit-scaling",
    "With preventPodSchedulingIfMissing a pod is scheduled to a node only once the driver is registered there.",
    |env| Box::pin(prevents_scheduling(env)),
)
.with_config(ScenarioConfig {
    since: Some(KubernetesVersion { major: 1, minor: 37 }),
    // When CSINode changes, kube-scheduler 1.37 retries the pod only if a limit has increased: without a limit,
    // kube-scheduler retries the pod only after up to five minutes.
    driver_flags: &["--attach-limit=4"],
    ..ScenarioConfig::ONE_NODE
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    const ERROR: &str = "does not contain driver";
    let volume = env.volume("data", Access::OneNode).await?;
    env.uninstall_driver(A).await?;
    env.pod("web", A, &[&volume]).await?;
    let (before, error) = env.wait_for_attach_error(&volume, A).await?;
    let message = error.message.unwrap_or_default();
    ensure!(message.contains(ERROR), "the attachError is {message:?}");
    env.wait_for_event("web", "FailedAttachVolume", ERROR, STEP_TIMEOUT)
        .await?;
    let times = env.driver.calls_to(PUBLISH, &volume.handle)?;
    ensure!(
        times == 0,
        "the driver was called {times} times for a node without it"
    );

    env.install_driver(A).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    let after = env.wait_until_attached(&env.attachment_name(&volume, A)).await?;
    ensure!(
        after.metadata.uid == before.metadata.uid,
        "the VolumeAttachment was replaced: {:?}, then {:?}",
        before.metadata.uid,
        after.metadata.uid
    );
    let times = env.driver.calls_to(PUBLISH, &volume.handle)?;
    ensure!(times == 1, "ControllerPublishVolume was called {times} times");
    Ok(())
}

async fn prevents_scheduling(env: &mut TestEnv<'_>) -> Result<()> {
    let drivers = Api::<CSIDriver>::all(env.client());
    let patch = Patch::Merge(json!({"spec": {"preventPodSchedulingIfMissing": true}}));
    objects::patch(&drivers, env.driver.name(), &patch).await?;
    // Before the volume is created and bound, so that the scheduler's cache shows it when the pod appears.
    env.uninstall_driver(A).await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    let missing = format!("{} CSI driver is not installed on the node", env.driver.name());
    env.wait_until_unschedulable("web", &missing).await?;
    let attachments = env.attachments().await?;
    ensure!(
        attachments.is_empty(),
        "a pod that is not scheduled has VolumeAttachments: {attachments:?}"
    );

    env.install_driver(A).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await
}
