//! The driver refuses to attach at first, and accepts later.

use anyhow::{Context, Result, ensure};

use super::Scenario;
use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;

/// The number of gRPC's `RESOURCE_EXHAUSTED`, after which kubelet updates the node's volume limits.
const RESOURCE_EXHAUSTED: i32 = 8;
const REASON: &str = "no free slot on this node";

/// With the feature gate for error codes at its default.
pub(super) const CODED: Scenario = Scenario::new(
    "attach-fails",
    "The driver's error and its code reach attachError and the pod's Events; the retry attaches.",
    |env| Box::pin(run(env, Some(RESOURCE_EXHAUSTED))),
)
.with_config(ScenarioConfig::ONE_NODE);

/// For API servers without the field `errorCode`, which reject a status that has it.
pub(super) const UNCODED: Scenario = Scenario::new(
    "attach-fails-uncoded",
    "With feature gate MutableCSINodeAllocatableCount off, attachError has no errorCode.",
    |env| Box::pin(run(env, None)),
)
.with_config(ScenarioConfig {
    flags: &["--feature-gates=MutableCSINodeAllocatableCount=false"],
    ..ScenarioConfig::ONE_NODE
});

async fn run(env: &mut TestEnv<'_>, code: Option<i32>) -> Result<()> {
    let full = FaultRule::fail(
        "full",
        Method::ControllerPublishVolume,
        "RESOURCE_EXHAUSTED",
        REASON,
    );
    env.driver.set_faults(&[full]).await?;
    let volume = env.volume("data", Access::OneNode).await?;
    env.pod("web", A, &[&volume]).await?;

    let (_, error) = env.wait_for_attach_error(&volume, A).await?;
    let message = error.message.context("the attachError must have a message")?;
    ensure!(message.contains(REASON), "the attachError is \"{message}\"");
    ensure!(
        error.error_code == code,
        "its errorCode is {:?}",
        error.error_code
    );
    ensure!(error.time.is_some(), "the attachError has no time");
    env.wait_for_event("web", "FailedAttachVolume", REASON, STEP_TIMEOUT)
        .await?;
    env.ensure_not_running("web").await?;
    let published = env.driver.published().await?;
    ensure!(
        published.is_empty(),
        "published although the driver refused: {published:?}"
    );

    env.driver.clear_faults().await?;
    env.wait_until_running("web", STEP_TIMEOUT).await
}
