//! The driver's node plugin comes back under another node id: a machine was replaced and kept its name.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::{A, PATIENCE, Setting, Stage};
use super::{Oddity, Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::Call;
use crate::fixture::Access;

/// While the volume is attached.
pub(super) const ATTACHED: Scenario = Scenario {
    name: "node-registered-anew",
    about: "A volume is detached from the node id it was attached to, whatever the node's id is by now.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(12),
        sign: "the detach went to",
        always: true,
    },
    play: |stage| Box::pin(attached(stage)),
};

/// While nobody knows whether the volume is attached.
pub(super) const HALF_ATTACHED: Scenario = Scenario {
    name: "node-anew-half-attached",
    about: "What an attach may have left at the node's old id is taken back before the volume is attached to the new one.",
    setting: Setting {
        nodes: 1,
        timeout: Duration::from_secs(2),
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(12),
        sign: "the volume is still published to the node's old id",
        always: true,
    },
    play: |stage| Box::pin(half_attached(stage)),
};

const PUBLISH: &str = "ControllerPublishVolume";
const UNPUBLISH: &str = "ControllerUnpublishVolume";

async fn attached(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;
    stage.wait_until_running("web", PATIENCE).await?;
    let old = stage.node(A).node_id().to_owned();
    stage.register_anew(A).await?;

    stage.delete_pod("web").await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await?;
    let calls = stage.driver.calls()?;
    let detaches: Vec<_> = nodes_of(&calls, UNPUBLISH);
    ensure!(
        detaches == [&*old],
        "the detach went to {detaches:?}, the volume was attached to {old}"
    );
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    Ok(())
}

async fn half_attached(stage: &mut Stage<'_>) -> Result<()> {
    // The array would let it be on two nodes at once: that it is not must be the attacher's doing.
    let volume = stage.volume("data", Access::ManyNodes).await?;
    let old = stage.node(A).node_id().to_owned();
    let lost = FaultRule::hang_after_effect("lost", Method::ControllerPublishVolume).for_node(&old);
    stage.driver.set_faults(&[lost]).await?;
    stage.pod("web", A, &[&volume]).await?;
    stage
        .driver
        .wait_until_published(&volume.handle, &old, true, PATIENCE)
        .await?;
    let new = stage.register_anew(A).await?;
    stage.judge_by(A, &new);

    stage.wait_until_running("web", PATIENCE).await?;
    let published = stage.driver.published().await?;
    let nodes = published
        .get(&volume.handle)
        .context("the pod runs with a volume that is nowhere")?;
    ensure!(
        !nodes.contains(&old),
        "the volume is still published to the node's old id: {nodes:?}"
    );
    ensure!(nodes.contains(&new), "the volume is published to {nodes:?}");
    let calls = stage.driver.calls()?;
    let taken_back = calls
        .iter()
        .filter(|call| call.method == UNPUBLISH && call.node == old && call.succeeded())
        .filter_map(|call| call.end.as_ref())
        .map(|end| end.at)
        .max()
        .with_context(|| format!("nobody took it back from {old}"))?;
    let given = calls
        .iter()
        .find(|call| call.method == PUBLISH && call.node == new)
        .with_context(|| format!("nobody published it to {new}"))?;
    ensure!(
        taken_back <= given.start,
        "published to {new} at {} before it was taken back from {old} at {taken_back}",
        given.start
    );
    Ok(())
}

/// The nodes that calls of this method were about, in their order.
fn nodes_of<'c>(calls: &'c [Call], method: &str) -> Vec<&'c str> {
    let calls = calls.iter().filter(|call| call.method == method);
    calls.map(|call| &*call.node).collect()
}
