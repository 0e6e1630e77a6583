//! The protocol of `node.status.volumesAttached`: kubelet may mount the listed volumes, so the attach/detach controller
//! removes a volume from the list before it deletes the VolumeAttachment. Since Kubernetes 1.29, the volume is uncertain after
//! a failed detach (<https://github.com/kubernetes/kubernetes/pull/120595>), and is listed again only after an attach succeeds.

use anyhow::{Context, Result, ensure};

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume, VolumesAttached};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::UNPUBLISH;
use crate::fixture::Access;

const REASON: &str = "the port is locked";

pub(super) const SCENARIO: Scenario = Scenario::new(
    "volumes-attached",
    "A volume is removed from volumesAttached before its VolumeAttachment is deleted, and is not added again after a failed detach.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings::DEFAULT),
    ..ScenarioConfig::ONE_NODE
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("web", A, "data").await?;
    env.wait_for_volumes_attached(A, &[&volume]).await?;

    let statuses = env.follow_volumes_attached(A).await?;
    let locked = FaultRule::fail("locked", Method::ControllerUnpublishVolume, "INTERNAL", REASON);
    env.driver.set_faults(&[locked]).await?;
    env.delete_pod("web").await?;
    env.wait_for_detach_error(&volume, A, REASON).await?;
    statuses.wait_for(&volume, &[true, false]).await?;
    // The backoff has doubled: the detach failed twice.
    for failure in ["DetachVolume.Detach failed", "(durationBeforeRetry 1s)"] {
        let cluster = env.ctx().cluster();
        cluster
            .wait_for_component_log(
                Component::ControllerManager,
                &[failure, &volume.handle],
                STEP_TIMEOUT,
            )
            .await?;
    }
    env.driver.clear_faults().await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[]).await?;

    ensure!(
        statuses.history(&volume) == [true, false],
        "volumesAttached listed the volume again: {:?}",
        statuses.history(&volume)
    );
    ensure_removed_before_deletion(env, &statuses, &volume)
}

/// Fails unless volumesAttached lost the volume before its VolumeAttachment was deleted.
fn ensure_removed_before_deletion(
    env: &TestEnv<'_>,
    statuses: &VolumesAttached,
    volume: &TestVolume,
) -> Result<()> {
    let events = env.recorder().watch_events();
    let deleting = events.iter().find(|event| {
        let attachment = &event.object;
        attachment.metadata.deletion_timestamp.is_some()
            && attachment.spec.source.persistent_volume_name.as_ref() == Some(&volume.pv)
    });
    let deleting = deleting.context("the VolumeAttachment was never deleted")?;
    let version = &deleting.object.metadata.resource_version;
    let deleted: u64 = version
        .as_deref()
        .unwrap_or_default()
        .parse()
        .context("parse a resourceVersion")?;
    let removed = statuses
        .first_removal(volume)
        .context("volumesAttached never lost the volume")?;
    ensure!(
        removed < deleted,
        "the VolumeAttachment was deleted (resourceVersion {deleted}) before volumesAttached lost the volume ({removed})"
    );
    Ok(())
}

/// Without the permission to patch node statuses.
pub(super) const PATCH_FAILS: Scenario = Scenario::new(
    "node-status-patch-fails",
    "A volume is not detached while the attach/detach controller cannot remove it from volumesAttached, and a pod that returns uses it.",
    |env| Box::pin(patch_fails(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings::DEFAULT),
    ..ScenarioConfig::ONE_NODE
});

async fn patch_fails(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    let other = env.volume("other", Access::OneNode).await?;
    env.pod("first", A, &[&volume]).await?;
    env.wait_until_running("first", STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&volume]).await?;
    let statuses = env.follow_volumes_attached(A).await?;
    let before = env.wait_until_attachment_exists(&volume, A).await?.metadata.uid;

    env.ctx().cluster().allow_node_status_patches(false).await?;
    env.delete_pod("first").await?;
    wait_for_failed_patches(env, &volume).await?;
    // The controller still reports the volume as attached, so kubelet mounts it.
    env.pod("second", A, &[&volume]).await?;
    env.wait_until_running("second", STEP_TIMEOUT).await?;
    env.ctx().cluster().allow_node_status_patches(true).await?;
    env.pod("other", A, &[&other]).await?;
    env.wait_until_running("other", STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&volume, &other]).await?;
    ensure_untouched(env, &statuses, &volume, before.as_deref()).await?;

    env.ctx().cluster().allow_node_status_patches(false).await?;
    env.delete_pod("second").await?;
    wait_for_failed_patches(env, &volume).await?;
    ensure_untouched(env, &statuses, &volume, before.as_deref()).await?;
    env.ctx().cluster().allow_node_status_patches(true).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(A, &[&other]).await?;
    statuses.wait_for(&volume, &[true, false]).await?;
    ensure_removed_before_deletion(env, &statuses, &volume)
}

/// Waits until the controller has failed twice more to remove the volume from volumesAttached.
async fn wait_for_failed_patches(env: &TestEnv<'_>, volume: &TestVolume) -> Result<()> {
    let fails = ["UpdateNodeStatusForNode failed", &volume.handle];
    let cluster = env.ctx().cluster();
    cluster
        .wait_for_more_component_logs(Component::ControllerManager, &fails, 2, STEP_TIMEOUT)
        .await
}

/// Fails unless the volume was always listed in volumesAttached and has the VolumeAttachment with this UID.
async fn ensure_untouched(
    env: &TestEnv<'_>,
    statuses: &VolumesAttached,
    volume: &TestVolume,
    uid: Option<&str>,
) -> Result<()> {
    ensure!(
        statuses.history(volume) == [true],
        "volumesAttached listed the volume as {:?}",
        statuses.history(volume)
    );
    let attachment = env.wait_until_attachment_exists(volume, A).await?.metadata;
    ensure!(
        attachment.uid.as_deref() == uid && attachment.deletion_timestamp.is_none(),
        "the VolumeAttachment was deleted although the node reports the volume as attached: {attachment:?}"
    );
    env.ensure_calls(UNPUBLISH, volume, 0)
}
