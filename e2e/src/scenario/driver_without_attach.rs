//! A driver that has no publish calls, although Kubernetes waits for it to attach.

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::Scenario;
use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "driver-without-attach",
    "A driver without a controller service gets no controller call; its pods run and terminate.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    capabilities: "-CONTROLLER_SERVICE,-PUBLISH_UNPUBLISH_VOLUME",
    node_drivers: false,
    ..ScenarioConfig::DEFAULT
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::ManyNodes).await?;
    for node in [A, B] {
        env.exempt_from_attached(&volume, node);
    }
    env.pod("web-a", A, &[&volume]).await?;
    env.pod("web-b", B, &[&volume]).await?;
    env.wait_until_all_running(2, STEP_TIMEOUT).await?;
    for attachment in env.attachments().await? {
        ensure!(
            attachment.finalizers().is_empty(),
            "{} is held by {:?} although nothing was published",
            attachment.name_any(),
            attachment.finalizers()
        );
    }
    let held_by = env.persistent_volume(&volume).await?.finalizers().to_vec();
    ensure!(
        !held_by.contains(&env.finalizer()),
        "the volume is held by {held_by:?}"
    );

    for (pod, node) in [("web-a", A), ("web-b", B)] {
        env.delete_pod(pod).await?;
        env.wait_until_detached(&volume, node, STEP_TIMEOUT).await?;
    }
    let asked = ["ControllerGetCapabilities", PUBLISH, UNPUBLISH];
    let calls = env.driver.calls()?;
    match calls.iter().find(|call| asked.contains(&call.method.as_str())) {
        Some(call) => anyhow::bail!("the driver was called: {}", call.method),
        None => Ok(()),
    }
}
