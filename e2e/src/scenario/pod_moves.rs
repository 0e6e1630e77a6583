//! A workload moves: its pod on one node is deleted and a new one is made on another, as a Deployment does.

use anyhow::{Result, ensure};

use super::stage::{A, B, PATIENCE, Setting, Stage};
use super::{Scenario, Verdict, handover};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "pod-moves",
    about: "A volume follows its workload to another node: unmounted, detached, attached, mounted, in this order.",
    setting: Setting::DEFAULT,
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("before", A, &[&volume]).await?;
    stage.wait_until_running("before", PATIENCE).await?;

    // Both at once: the new pod does not wait for the old one to be gone.
    stage.delete_pod("before").await?;
    stage.pod("after", B, &[&volume]).await?;
    stage.wait_until_running("after", PATIENCE).await?;

    handover::ensure_in_order(stage, &volume, A, B)?;
    stage.wait_until_detached(&volume, A, PATIENCE).await?;
    let published = stage.driver.published().await?;
    let places: Vec<_> = published.get(&volume.handle).into_iter().flatten().collect();
    ensure!(
        places == [stage.node(B).node_id()],
        "after the move it is on {places:?}"
    );
    Ok(())
}
