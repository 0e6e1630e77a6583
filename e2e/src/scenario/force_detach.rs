//! A pod's volume stays mounted after the pod is gone: the attach/detach controller waits `maxWaitForUnmount`, then
//! detaches the volume by force, but only from an unhealthy node.

use std::time::Duration;

use anyhow::Result;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{Scenario, move_order};
use crate::cluster::ClusterSettings;
use crate::control_plane::Component;
use crate::driver::journal::UNPUBLISH;
use crate::fixture::Access;

/// A third node, for pods that move.
const C: usize = 2;

const SETTINGS: ClusterSettings = ClusterSettings {
    max_wait_for_unmount: Some(Duration::from_secs(5)),
    // Missing heartbeats do not make a node unhealthy during the test; only its Ready condition does.
    node_monitor_grace_period: Some(Duration::from_secs(30 * 60)),
    verbose_log: true,
    ..ClusterSettings::DEFAULT
};

/// The default.
pub(super) const ENABLED: Scenario = Scenario::new(
    "force-detach",
    "After maxWaitForUnmount a mounted volume is detached from an unhealthy node and not from a healthy one.",
    |env| Box::pin(enabled(env)),
)
.with_config(ScenarioConfig {
    nodes: 3,
    own_cluster: Some(SETTINGS),
    ..ScenarioConfig::DEFAULT
});

/// With `--disable-force-detach-on-timeout`.
pub(super) const DISABLED: Scenario = Scenario::new(
    "force-detach-disabled",
    "With --disable-force-detach-on-timeout only the out-of-service taint detaches a mounted volume.",
    |env| Box::pin(disabled(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings {
        disable_force_detach_on_timeout: true,
        ..SETTINGS
    }),
    ..ScenarioConfig::DEFAULT
});

/// The Node object is deleted with the machine.
pub(super) const NODE_DELETED: Scenario = Scenario::new(
    "node-deleted-in-use",
    "A volume in use on a node that is deleted is detached after maxWaitForUnmount, and only then attached to another.",
    |env| Box::pin(node_deleted(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(SETTINGS),
    ..ScenarioConfig::DEFAULT
});

async fn enabled(env: &mut TestEnv<'_>) -> Result<()> {
    let healthy = env.volume("healthy", Access::OneNode).await?;
    let unhealthy = env.volume("unhealthy", Access::OneNode).await?;
    env.pod("healthy", A, &[&healthy]).await?;
    env.pod("unhealthy", B, &[&unhealthy]).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;

    // Neither kubelet unmounts volumes any more; only one of the nodes reports that it is not ready.
    env.lose_node(A).await?;
    env.lose_node(B).await?;
    env.report_not_ready(B, "container runtime is down").await?;
    env.remove_pod("healthy").await?;
    let waits = [
        "Cannot detach volume because it is still mounted",
        &healthy.handle,
    ];
    wait_for_log(env, &waits).await?;
    env.allow_force_detach(&unhealthy, B);
    env.remove_pod("unhealthy").await?;
    // The wait for the healthy node's volume started earlier, so it is over, too.
    env.wait_until_detached(&unhealthy, B, STEP_TIMEOUT).await?;

    env.ensure_calls(UNPUBLISH, &healthy, 0)?;
    env.wait_for_forced_detaches(1, 0).await?;
    env.pod("moved", C, &[&unhealthy]).await?;
    env.wait_until_running("moved", STEP_TIMEOUT).await?;
    env.remove_node(A, &healthy).await?;
    env.wait_until_detached(&healthy, A, STEP_TIMEOUT).await
}

async fn disabled(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("before", A, "data").await?;
    env.lose_node(A).await?;
    env.report_not_ready(A, "container runtime is down").await?;
    env.remove_pod("before").await?;
    wait_for_log(env, &["disableForceDetachOnTimeout was set", &volume.handle]).await?;
    env.ensure_calls(UNPUBLISH, &volume, 0)?;

    env.taint_out_of_service(A, &volume).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_forced_detaches(0, 1).await?;
    env.pod("after", B, &[&volume]).await?;
    env.wait_until_running("after", STEP_TIMEOUT).await
}

async fn node_deleted(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("before", A, "data").await?;
    env.lose_node(A).await?;
    env.allow_force_detach(&volume, A);
    env.delete_node(A).await?;
    env.remove_pod("before").await?;
    let waits = ["Cannot detach volume because it is still mounted", &volume.handle];
    wait_for_log(env, &waits).await?;
    env.pod("after", B, &[&volume]).await?;
    env.wait_until_running("after", STEP_TIMEOUT).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_for_forced_detaches(1, 0).await?;
    move_order::ensure_detached_before_attach(env, &volume, A, B)?;
    Ok(())
}

async fn wait_for_log(env: &TestEnv<'_>, words: &[&str]) -> Result<()> {
    let cluster = env.ctx().cluster();
    cluster
        .wait_for_component_log(Component::ControllerManager, words, STEP_TIMEOUT)
        .await
}
