//! The protocol around `node.status.volumesAttached`: kubelet may mount what is listed, so the attach/detach controller
//! removes a volume before its VolumeAttachment. After a failed detach the volume is uncertain, and is listed again only
//! when an attach has succeeded.

use anyhow::{Context, Result, ensure};

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, Scenario};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;

const REASON: &str = "the port is locked";

pub(super) const SCENARIO: Scenario = Scenario {
    name: "volumes-attached",
    about: "volumesAttached loses a volume before its VolumeAttachment is deleted, and a failed detach does not bring it back.",
    config: ScenarioConfig {
        own_cluster: Some(ClusterSettings::DEFAULT),
        ..ScenarioConfig::ONE_NODE
    },
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(run(env)),
};

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&volume]).await?;

    let statuses = env.follow_volumes_attached(A).await?;
    let locked = FaultRule::fail("locked", Method::ControllerUnpublishVolume, "INTERNAL", REASON);
    env.driver.set_faults(&[locked]).await?;
    env.delete_pod("web").await?;
    env.wait_for_detach_error(&volume, A, REASON).await?;
    statuses.wait_for(&volume, &[true, false]).await?;
    let fails = ["DetachVolume.Detach failed", &volume.handle];
    let cluster = env.ctx().cluster();
    cluster
        .wait_for_component_log(Component::ControllerManager, &fails, STEP_TIMEOUT)
        .await?;
    env.driver.clear_faults().await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[]).await?;

    ensure!(
        statuses.history(&volume) == [true, false],
        "volumesAttached listed the volume again: {:?}",
        statuses.history(&volume)
    );
    let events = env.recorder().watch_events();
    let mut deleting = events
        .iter()
        .filter(|event| event.attachment.metadata.deletion_timestamp.is_some());
    let deleting = deleting
        .next()
        .context("the VolumeAttachment was never deleted")?;
    let version = &deleting.attachment.metadata.resource_version;
    let deleted: u64 = version
        .as_deref()
        .unwrap_or_default()
        .parse()
        .context("parse a resourceVersion")?;
    let removed = statuses
        .first_removal(&volume)
        .context("volumesAttached never lost the volume")?;
    ensure!(
        removed < deleted,
        "the VolumeAttachment was deleted (resourceVersion {deleted}) before volumesAttached lost the volume ({removed})"
    );
    Ok(())
}

/// Without the right to patch node statuses.
pub(super) const PATCH_FAILS: Scenario = Scenario {
    name: "node-status-patch-fails",
    about: "A volume is not detached while the attach/detach controller cannot remove it from volumesAttached.",
    config: ScenarioConfig {
        own_cluster: Some(ClusterSettings::DEFAULT),
        ..ScenarioConfig::ONE_NODE
    },
    go: ExpectedOutcome::Passes,
    run: |env| Box::pin(patch_fails(env)),
};

async fn patch_fails(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;

    let cluster = env.ctx().cluster();
    cluster.allow_node_status_patches(false).await?;
    env.delete_pod("web").await?;
    let fails = ["UpdateNodeStatusForNode failed", &volume.handle];
    cluster
        .wait_for_component_log(Component::ControllerManager, &fails, STEP_TIMEOUT)
        .await?;
    let attachment = env.wait_until_attachment_exists(&volume, A).await?;
    ensure!(
        attachment.metadata.deletion_timestamp.is_none(),
        "the VolumeAttachment is deleted although the node still reports the volume as attached"
    );

    cluster.allow_node_status_patches(true).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[]).await
}
