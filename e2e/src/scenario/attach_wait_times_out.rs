//! The attacher is down for longer than the attach/detach controller waits, and the driver has attached the volume: the
//! controller must mark it as uncertain.

use std::time::Duration;

use anyhow::Result;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{Scenario, move_order};
use crate::cluster::ClusterSettings;
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;

/// Longer than the real controller's constant `csiTimeout` of 2 minutes.
const CSI_TIMEOUT: Duration = Duration::from_secs(150);

pub(super) const SCENARIO: Scenario = Scenario::new(
    "attach-wait-times-out",
    "After the controller's wait for an attach timed out, it detaches the volume before it attaches it to another node.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    own_cluster: Some(ClusterSettings {
        csi_timeout: Some(Duration::from_secs(5)),
        ..ClusterSettings::DEFAULT
    }),
    ..ScenarioConfig::DEFAULT
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    let hangs = FaultRule::hang_after_effect("hangs", Method::ControllerPublishVolume);
    env.driver.set_faults(&[hangs]).await?;
    env.pod("first", A, &[&volume]).await?;
    env.wait_until_published(&volume, A, true).await?;
    env.attacher.crash().await?;
    env.driver.clear_faults().await?;
    env.pod("second", B, &[&volume]).await?;
    env.delete_pod("first").await?;
    env.wait_until_pod_gone("first", STEP_TIMEOUT).await?;

    let gave_up = format!("timed out waiting for external-attacher of {}", env.driver.name());
    env.wait_for_event("first", "FailedAttachVolume", &gave_up, CSI_TIMEOUT)
        .await?;
    env.attacher.revive().await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_until_running("second", STEP_TIMEOUT).await?;
    move_order::ensure_detached_before_attach(env, &volume, A, B)?;
    Ok(())
}
