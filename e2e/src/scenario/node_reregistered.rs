//! The driver's node plugin reregisters under another node id: a machine was replaced and kept its name.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{Call, PUBLISH, UNPUBLISH};
use crate::fixture::Access;

/// While the volume is attached.
pub(super) const ATTACHED: Scenario = Scenario::new(
    "node-reregistered",
    "A volume is detached from the node id it was attached to, and from the node's present id.",
    |env| Box::pin(attached(env)),
)
.with_config(ScenarioConfig::ONE_NODE)
.with_go(ExpectedOutcome::fails(KnownIssue(12), "the detach went to"));

/// While the result of the attach is unknown.
pub(super) const HALF_ATTACHED: Scenario = Scenario::new(
    "node-reregistered-half",
    "A publish to the node's previous id that may have succeeded is unpublished before the volume is published to the new id.",
    |env| Box::pin(half_attached(env)),
)
.with_config(ScenarioConfig {
    timeout: Duration::from_secs(2),
    ..ScenarioConfig::ONE_NODE
})
.with_go(ExpectedOutcome::fails(KnownIssue(12), "the volume is still published to the node's old id"));

async fn attached(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.running_pod("web", A, "data").await?;
    let old = env.node(A).node_id().to_owned();
    let new = env.reregister(A).await?;

    env.delete_pod("web").await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    let calls = env.driver.calls()?;
    let detaches: Vec<_> = nodes_of(&calls, UNPUBLISH);
    // The driver may know the machine only by the new id, and return OK for the old one.
    ensure!(
        detaches == [&*old, &*new],
        "the detach went to {detaches:?}, the volume was attached to {old}, and the node's id is {new} now"
    );
    Ok(())
}

async fn half_attached(env: &mut TestEnv<'_>) -> Result<()> {
    // The array allows two nodes at the same time, so only the attacher prevents it.
    let volume = env.volume("data", Access::ManyNodes).await?;
    let old = env.node(A).node_id().to_owned();
    let lost = FaultRule::hang_after_effect("lost", Method::ControllerPublishVolume).for_node(&old);
    env.driver.set_faults(&[lost]).await?;
    env.pod("web", A, &[&volume]).await?;
    env.wait_until_published(&volume, A, true).await?;
    let new = env.reregister(A).await?;
    env.expect_node_id(A, &new);

    env.wait_until_running("web", STEP_TIMEOUT).await?;
    let published = env.driver.published().await?;
    let nodes = published
        .get(&volume.handle)
        .context("the pod runs with a volume that is nowhere")?;
    ensure!(
        !nodes.contains(&old),
        "the volume is still published to the node's old id: {nodes:?}"
    );
    ensure!(nodes.contains(&new), "the volume is published to {nodes:?}");
    let calls = env.driver.calls()?;
    let unpublished = calls
        .iter()
        .filter(|call| call.method == UNPUBLISH && call.node == old && call.succeeded())
        .filter_map(|call| call.end.as_ref())
        .map(|end| end.at)
        .max()
        .with_context(|| format!("no unpublish from {old}"))?;
    let published = calls
        .iter()
        .find(|call| call.method == PUBLISH && call.node == new)
        .with_context(|| format!("no publish to {new}"))?;
    ensure!(
        unpublished <= published.start,
        "published to {new} at {} before it was unpublished from {old} at {unpublished}",
        published.start
    );
    Ok(())
}

/// The node IDs of the calls of this method, in order.
fn nodes_of<'c>(calls: &'c [Call], method: &str) -> Vec<&'c str> {
    let calls = calls.iter().filter(|call| call.method == method);
    calls.map(|call| &*call.node).collect()
}
