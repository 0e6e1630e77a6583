//! A driver that has no publish calls, although Kubernetes waits for it to attach.

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::stage::{A, B, PATIENCE, Setting, Stage};
use super::{Scenario, Verdict};
use crate::fixture::Access;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "trivial-driver",
    about: "A driver without a controller gets no controller call, and its pods run and end all the same.",
    setting: Setting {
        capabilities: "-CONTROLLER_SERVICE,-PUBLISH_UNPUBLISH_VOLUME",
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::ManyNodes).await?;
    for node in [A, B] {
        stage.attachers_cannot_know(&volume, node);
    }
    stage.pod("web-a", A, &[&volume]).await?;
    stage.pod("web-b", B, &[&volume]).await?;
    stage.wait_until_all_running(2, PATIENCE).await?;
    for attachment in stage.attachments().await? {
        ensure!(
            attachment.finalizers().is_empty(),
            "{} is held by {:?} although nothing was published",
            attachment.name_any(),
            attachment.finalizers()
        );
    }
    let held_by = stage.persistent_volume(&volume).await?.finalizers().to_vec();
    ensure!(
        !held_by.contains(&stage.finalizer()),
        "the volume is held by {held_by:?}"
    );

    for (pod, node) in [("web-a", A), ("web-b", B)] {
        stage.delete_pod(pod).await?;
        stage.wait_until_detached(&volume, node, PATIENCE).await?;
    }
    let asked = [
        "ControllerGetCapabilities",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
    ];
    let calls = stage.driver.calls()?;
    match calls.iter().find(|call| asked.contains(&call.method.as_str())) {
        Some(call) => anyhow::bail!("the driver was asked for {}", call.method),
        None => Ok(()),
    }
}
