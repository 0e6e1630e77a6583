//! A node goes down with a volume mounted, and an administrator gives it up.

use anyhow::{Context, Result, ensure};

use super::stage::{A, B, PATIENCE, Setting, Stage};
use super::{Scenario, Verdict};
use crate::fixture::Access;
use crate::node::Deed;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "node-lost",
    about: "A volume mounted on a dead node is detached by force, and only then attached to another.",
    setting: Setting::DEFAULT,
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("before", A, &[&volume]).await?;
    stage.wait_until_running("before", PATIENCE).await?;

    stage.lose_node(A);
    stage.pod("after", B, &[&volume]).await?;
    // As long as nobody vouches for the node, the volume is not taken from it.
    stage
        .wait_for_event("after", "FailedAttachVolume", "Multi-Attach error", PATIENCE)
        .await?;
    let calls = stage.driver.calls()?;
    ensure!(
        calls
            .iter()
            .all(|call| call.method != "ControllerUnpublishVolume"),
        "detached from a node that may still write to the volume"
    );

    stage.give_node_up(A, "before", &volume).await?;
    stage.wait_until_running("after", PATIENCE).await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await?;

    let unmounted = Deed::Unmounted {
        handle: volume.handle.clone(),
    };
    let dead = stage.node(A).name();
    ensure!(
        !stage
            .ledger()
            .entries()
            .iter()
            .any(|entry| entry.node == dead && entry.deed == unmounted),
        "the dead node unmounted the volume, so nothing was forced"
    );
    let calls = stage.driver.calls()?;
    let call = |method: &str, node: &str| {
        calls
            .iter()
            .find(|call| call.method == method && call.node == node && call.succeeded())
            .with_context(|| format!("no successful {method} for node {node}"))
    };
    let detached = call("ControllerUnpublishVolume", stage.node(A).node_id())?;
    let attached = call("ControllerPublishVolume", stage.node(B).node_id())?;
    let detached_at = detached.end.as_ref().context("a successful call has an end")?.at;
    ensure!(
        detached_at <= attached.start,
        "attached at {} before the detach at {detached_at}",
        attached.start
    );
    Ok(())
}
