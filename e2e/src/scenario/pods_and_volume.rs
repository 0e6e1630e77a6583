//! Pods that are created and deleted around one volume.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::{ExpectedOutcome, Scenario};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;

/// Error of the failing detach.
const REASON: &str = "the port is locked";

/// If the attach/detach controller's cache still has the VolumeAttachment that is being deleted, the CSI plugin creates
/// none and waits for that one, for up to the real controller's `csiTimeout` of two minutes.
const LOST_ATTACH: Duration = Duration::from_secs(180);

pub(super) const SHARE: Scenario = Scenario::new(
    "pods-share-volume",
    "Two pods on one node share a volume: it stays attached until both are gone.",
    |env| Box::pin(share(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

pub(super) const RETURNS: Scenario = Scenario::new(
    "pod-returns",
    "A pod that returns to its node while the detach fails gets its volume again.",
    |env| Box::pin(returns(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings {
        csi_timeout: Some(Duration::from_secs(15)),
        ..ClusterSettings::DEFAULT
    }),
    ..ScenarioConfig::ONE_NODE
});

pub(super) const RETURNS_MOUNTED: Scenario = Scenario::new(
    "pod-returns-mounted",
    "A pod that returns to its node before the volume is unmounted keeps the VolumeAttachment: nothing is detached or attached.",
    |env| Box::pin(returns_mounted(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings {
        // The node stays healthy while its kubelet is down.
        node_monitor_grace_period: Some(Duration::from_secs(30 * 60)),
        verbose_log: true,
        ..ClusterSettings::DEFAULT
    }),
    ..ScenarioConfig::ONE_NODE
})
.with_go(ExpectedOutcome::MAY_PUBLISH_TWICE);

pub(super) const DELETED_EARLY: Scenario = Scenario::new(
    "pod-deleted-early",
    "A volume whose pod is deleted during the attach is detached when the attach has finished.",
    |env| Box::pin(deleted_early(env)),
)
.with_config(ScenarioConfig {
    // The response is held until the pod is gone.
    timeout: Duration::from_secs(120),
    ..ScenarioConfig::ONE_NODE
});

pub(super) const MANY_NODES: Scenario = Scenario::new(
    "pods-on-many-nodes",
    "A ReadWriteMany volume is attached to two nodes concurrently and detached from each independently.",
    |env| Box::pin(many_nodes(env, Access::ManyNodes)),
)
// Emulated devices have a filesystem on one node at a time only.
.with_config(ScenarioConfig {
    node_drivers: false,
    ..ScenarioConfig::DEFAULT
});

pub(super) const READERS: Scenario = Scenario {
    name: "readers-on-many-nodes",
    about: "A ReadOnlyMany volume is attached to two nodes concurrently and detached from each independently.",
    run: |env| Box::pin(many_nodes(env, Access::ManyReaders)),
    ..MANY_NODES
};

pub(super) const ONE_POD: Scenario = Scenario::new(
    "read-write-once-pod",
    "The scheduler does not schedule a second pod with a ReadWriteOncePod volume until the first is deleted.",
    |env| Box::pin(one_pod(env)),
)
.with_config(ScenarioConfig::ONE_NODE);

async fn share(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("one", A, &[&volume]).await?;
    env.pod("two", A, &[&volume]).await?;
    let barrier = env.volume("barrier", Access::OneNode).await?;
    env.pod("barrier", A, &[&barrier]).await?;
    env.wait_until_all_running(3, STEP_TIMEOUT).await?;
    env.delete_pod("one").await?;
    env.wait_until_pod_gone("one", STEP_TIMEOUT).await?;
    delete_barrier(env, &barrier).await?;
    env.wait_for_volumes_attached(A, &[&volume]).await?;
    env.ensure_calls(UNPUBLISH, &volume, 0)?;
    env.delete_pod("two").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.ensure_calls(UNPUBLISH, &volume, 1)
}

/// Deletes the pod `barrier`. When its volume is detached, the attach/detach controller has seen all earlier deletions of
/// pods.
async fn delete_barrier(env: &TestEnv<'_>, barrier: &TestVolume) -> Result<()> {
    env.delete_pod("barrier").await?;
    env.wait_until_detached(barrier, A, STEP_TIMEOUT).await
}

async fn returns(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("first", A, "data").await?;
    let locked = FaultRule::fail("locked", Method::ControllerUnpublishVolume, "INTERNAL", REASON);
    env.driver.set_faults(&[locked]).await?;
    env.delete_pod("first").await?;
    env.wait_for_detach_error(&volume, A, REASON).await?;
    env.pod("second", A, &[&volume]).await?;
    env.driver.clear_faults().await?;
    env.wait_until_running("second", LOST_ATTACH).await
}

async fn returns_mounted(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("first", A, "data").await?;
    env.wait_for_total_volumes(1, 1).await?;
    let attachment = env.attachment_name(&volume, A);
    let before = env.wait_until_attached(&attachment).await?.metadata.uid;

    // kubelet unmounts nothing while it is down, so volumesInUse keeps the volume when the pod is gone.
    env.lose_node(A).await?;
    env.remove_pod("first").await?;
    env.wait_for_total_volumes(0, 1).await?;
    let waits = ["Cannot detach volume because it is still mounted", &volume.handle];
    let cluster = env.ctx().cluster();
    cluster
        .wait_for_component_log(Component::ControllerManager, &waits, STEP_TIMEOUT)
        .await?;
    env.pod("second", A, &[&volume]).await?;
    env.wait_for_total_volumes(1, 1).await?;
    env.recover_node(A)?;
    env.wait_until_running("second", STEP_TIMEOUT).await?;

    let after = env.wait_until_attached(&attachment).await?.metadata.uid;
    ensure!(
        after == before,
        "the VolumeAttachment was replaced: its UID was {before:?} and is {after:?}"
    );
    env.wait_for_volumes_attached(A, &[&volume]).await?;
    for (method, expected) in [(PUBLISH, 1), (UNPUBLISH, 0)] {
        env.ensure_calls(method, &volume, expected)?;
    }
    Ok(())
}

async fn deleted_early(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    let barrier = env.running_pod("barrier", A, "barrier").await?;
    let held = FaultRule::hold_response("held", Method::ControllerPublishVolume);
    env.driver.set_faults(&[held.for_volume(&volume.handle)]).await?;
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_published(&volume, A, true).await?;
    env.delete_pod("web").await?;
    env.wait_until_pod_gone("web", STEP_TIMEOUT).await?;
    delete_barrier(env, &barrier).await?;
    env.ensure_calls_in_flight(&[&volume])?;
    env.driver.clear_faults().await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await
}

async fn one_pod(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OnePod).await?;
    env.pod("first", A, &[&volume]).await?;
    env.wait_until_running("first", STEP_TIMEOUT).await?;
    env.pod("second", A, &[&volume]).await?;
    env.wait_until_unschedulable("second", "ReadWriteOncePod").await?;
    env.ensure_not_running("second").await?;
    env.delete_pod("first").await?;
    env.wait_until_running("second", STEP_TIMEOUT).await
}

async fn many_nodes(env: &mut TestEnv<'_>, access: Access) -> Result<()> {
    let volume = env.volume("data", access).await?;
    env.pod("on-a", A, &[&volume]).await?;
    env.pod("on-b", B, &[&volume]).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;
    let published = env.driver.published().await?;
    let nodes = published
        .get(&volume.handle)
        .map_or(0, std::collections::BTreeSet::len);
    ensure!(nodes == 2, "published to {nodes} nodes");
    env.delete_pod("on-a").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_volumes_attached(B, &[&volume]).await?;
    env.delete_pod("on-b").await?;
    env.wait_until_detached(&volume, B, STEP_TIMEOUT).await
}
