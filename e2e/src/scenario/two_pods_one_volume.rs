//! Two pods on two nodes want one volume that may be on one node only.

use anyhow::{Result, ensure};

use super::stage::{A, B, PATIENCE, Setting, Stage};
use super::{Scenario, Verdict, handover};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "two-pods-one-volume",
    about: "The second pod is told why it has to wait, and gets the volume when the first one is gone.",
    setting: Setting::DEFAULT,
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("holder", A, &[&volume]).await?;
    stage.wait_until_running("holder", PATIENCE).await?;

    stage.pod("waiter", B, &[&volume]).await?;
    stage
        .wait_for_event("waiter", "FailedAttachVolume", "Multi-Attach error", PATIENCE)
        .await?;
    stage.ensure_not_running("waiter").await?;
    let attachments = stage.attachments().await?;
    ensure!(
        attachments.len() == 1,
        "{} attachments for a volume with one node",
        attachments.len()
    );

    stage.delete_pod("holder").await?;
    stage.wait_until_running("waiter", PATIENCE).await?;
    handover::ensure_in_order(stage, &volume, A, B)
}
