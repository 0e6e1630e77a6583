//! In-tree volumes: their PersistentVolumes say `awsElasticBlockStore`, and a CSI driver has taken over.

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::stage::{A, PATIENCE, Setting, Stage, StageVolume};
use super::{Scenario, Verdict};
use crate::fixture::{Access, EBS_DRIVER, EBS_PLUGIN, PROVISIONED_BY};
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "migrated-volume",
    about: "Volumes of a plugin that is no longer in tree are attached through the CSI driver that took over; our finalizer stays only on the one that was handed over.",
    setting: Setting {
        nodes: 1,
        driver: Some(EBS_DRIVER),
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

/// The PersistentVolume controller hands over only what says that the plugin has provisioned it.
async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let made = stage.ebs_volume("made", Access::OneNode, None).await?;
    let provisioned = (PROVISIONED_BY, EBS_PLUGIN);
    let provisioned = stage
        .ebs_volume("provisioned", Access::OneNode, Some(provisioned))
        .await?;
    stage
        .wait_for_persistent_volume(&provisioned, PATIENCE, "the volume to be handed over", |pv| {
            let to = pv.and_then(|pv| pv.annotations().get("pv.kubernetes.io/migrated-to"));
            Progress::of(to.is_some_and(|to| to == EBS_DRIVER), || {
                format!("it is migrated to {to:?}")
            })
        })
        .await?;

    stage.pod("web", A, &[&made, &provisioned]).await?;
    stage.wait_until_running("web", PATIENCE).await?;
    for volume in [&made, &provisioned] {
        ensure!(is_held(stage, volume).await?, "{} is not held", volume.pv);
        let node_id = stage.node(A).node_id();
        ensure!(
            stage.driver.calls()?.iter().any(|call| {
                call.method == "ControllerPublishVolume"
                    && call.volume == volume.handle
                    && call.node == node_id
            }),
            "{} was not published as {} to {node_id}",
            volume.pv,
            volume.handle
        );
    }

    stage.delete_pod("web").await?;
    stage.wait_until_pod_gone("web", PATIENCE).await?;
    for volume in [&made, &provisioned] {
        stage.wait_until_detached(volume, A, PATIENCE).await?;
    }
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    let finalizer = stage.finalizer();
    stage
        .wait_for_persistent_volume(&made, PATIENCE, "the volume to be let go of", |pv| {
            let held = pv.is_some_and(|pv| pv.finalizers().contains(&finalizer));
            Progress::of(!held, || "it still has our finalizer".to_owned())
        })
        .await?;
    ensure!(
        is_held(stage, &provisioned).await?,
        "{} was let go of though it lives and was handed over",
        provisioned.pv
    );

    // What was let go of is claimed again.
    stage.pod("again", A, &[&made]).await?;
    stage.wait_until_running("again", PATIENCE).await?;
    ensure!(is_held(stage, &made).await?, "{} is not held again", made.pv);
    stage.delete_pod("again").await?;
    stage.wait_until_pod_gone("again", PATIENCE).await?;
    stage.wait_until_detached(&made, A, PATIENCE).await
}

async fn is_held(stage: &Stage<'_>, volume: &StageVolume) -> Result<bool> {
    let pv = stage.persistent_volume(volume).await?;
    Ok(pv.finalizers().contains(&stage.finalizer()))
}
