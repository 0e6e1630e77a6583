//! A driver loses its publish calls with one version and gets them back with the next.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::stage::{A, B, PATIENCE, Setting, Stage, StageVolume};
use super::{Oddity, Scenario, Verdict};
use crate::fixture::Access;
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "driver-changes",
    about: "A driver that loses its publish calls leaves no finalizer behind, and one that gets them back misses nothing.",
    setting: Setting {
        reconcile_sync: Duration::from_secs(1),
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(16),
        sign: "finalizer",
        always: true,
    },
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let early = stage.volume("early", Access::OneNode).await?;
    let late = stage.volume("late", Access::OneNode).await?;
    stage.attachers_cannot_know(&late, B);
    stage.pod("early", A, &[&early]).await?;
    stage.wait_until_running("early", PATIENCE).await?;
    wait_for_finalizer(stage, &early, A, true).await?;

    stage.driver.restart_without("-PUBLISH_UNPUBLISH_VOLUME").await?;
    wait_for_finalizer(stage, &early, A, false).await?;
    let ours = stage.finalizer();
    stage
        .wait_for_persistent_volume(&early, PATIENCE, "our finalizer to leave the volume", |pv| {
            let held_by = pv.map(ResourceExt::finalizers).unwrap_or_default();
            Progress::of(!held_by.contains(&ours), || format!("it is held by {held_by:?}"))
        })
        .await?;
    stage.pod("late", B, &[&late]).await?;
    stage.wait_until_running("late", PATIENCE).await?;
    let published = stage.driver.published().await?;
    ensure!(
        published.contains_key(&early.handle) && !published.contains_key(&late.handle),
        "a driver without calls changed what is published: {published:?}"
    );

    stage.driver.restart_without("").await?;
    for (volume, node) in [(&early, A), (&late, B)] {
        let node_id = stage.node(node).node_id().to_owned();
        stage
            .driver
            .wait_until_published(&volume.handle, &node_id, true, PATIENCE)
            .await?;
        wait_for_finalizer(stage, volume, node, true).await?;
    }
    for (pod, volume, node) in [("early", &early, A), ("late", &late, B)] {
        stage.delete_pod(pod).await?;
        stage.wait_until_detached(volume, node, PATIENCE).await?;
    }
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    Ok(())
}

async fn wait_for_finalizer(stage: &Stage<'_>, volume: &StageVolume, node: usize, there: bool) -> Result<()> {
    let ours = stage.finalizer();
    let what = if there {
        "our finalizer to be on the attachment"
    } else {
        "our finalizer to leave the attachment"
    };
    stage
        .wait_for_attachment(volume, node, PATIENCE, what, |attachment| {
            let held_by = attachment.map(ResourceExt::finalizers);
            let is_there = held_by.is_some_and(|finalizers| finalizers.contains(&ours));
            Progress::of(attachment.is_some() && is_there == there, || {
                format!("it is held by {held_by:?}")
            })
        })
        .await
}
