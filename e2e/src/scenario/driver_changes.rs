//! One version of the driver has no publish capability, and the next one has it again.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::fixture::Access;
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "driver-changes",
    "A driver that restarts without PUBLISH_UNPUBLISH_VOLUME loses no finalizer and detaches nothing; restarted with it again, every volume is guarded.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    reconcile_sync: Duration::from_secs(1),
    node_drivers: false,
    ..ScenarioConfig::DEFAULT
})
.with_go(ExpectedOutcome::fails(KnownIssue(16), "the detach error to name the lost calls"));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let early = env.volume("early", Access::OneNode).await?;
    let late = env.volume("late", Access::OneNode).await?;
    env.exempt_from_attached(&late, B);
    env.pod("early", A, &[&early]).await?;
    env.wait_until_running("early", STEP_TIMEOUT).await?;
    wait_for_finalizer(env, &early, A, true).await?;

    env.driver.restart_without("-PUBLISH_UNPUBLISH_VOLUME").await?;
    env.pod("late", B, &[&late]).await?;
    env.wait_until_running("late", STEP_TIMEOUT).await?;
    env.delete_pod("early").await?;
    let what = "the detach error to name the lost calls";
    env.wait_for_attachment(&early, A, STEP_TIMEOUT, what, |attachment| {
        let status = attachment.and_then(|attachment| attachment.status.as_ref());
        let error = status.and_then(|status| status.detach_error.as_ref()?.message.as_deref());
        let names = error.is_some_and(|error| error.contains("PUBLISH_UNPUBLISH_VOLUME"));
        Progress::of(names, || format!("it is {error:?}"))
    })
    .await?;
    wait_for_finalizer(env, &early, A, true).await?;
    let ours = env.finalizer();
    env.wait_for_persistent_volume(
        &early,
        STEP_TIMEOUT,
        "our finalizer to stay on the volume",
        |pv| {
            let held_by = pv.map(ResourceExt::finalizers).unwrap_or_default();
            Progress::of(held_by.contains(&ours), || format!("it is held by {held_by:?}"))
        },
    )
    .await?;
    let published = env.driver.published().await?;
    ensure!(
        published.contains_key(&early.handle) && !published.contains_key(&late.handle),
        "a driver without publish calls changed the published volumes: {published:?}"
    );

    env.driver.restart_without("").await?;
    env.wait_until_detached(&early, A, STEP_TIMEOUT).await?;
    env.wait_until_published(&late, B, true).await?;
    wait_for_finalizer(env, &late, B, true).await?;
    env.delete_pod("late").await?;
    env.wait_until_detached(&late, B, STEP_TIMEOUT).await
}

async fn wait_for_finalizer(env: &TestEnv<'_>, volume: &TestVolume, node: usize, there: bool) -> Result<()> {
    let ours = env.finalizer();
    let what = if there {
        "our finalizer to be on the attachment"
    } else {
        "our finalizer to leave the attachment"
    };
    env.wait_for_attachment(volume, node, STEP_TIMEOUT, what, |attachment| {
        let held_by = attachment.map(ResourceExt::finalizers);
        let is_there = held_by.is_some_and(|finalizers| finalizers.contains(&ours));
        Progress::of(attachment.is_some() && is_there == there, || {
            format!("it is held by {held_by:?}")
        })
    })
    .await
}
