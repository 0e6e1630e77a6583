//! The attacher is killed (-9) at the two moments at which only the cluster and the array know the truth.

use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::stage::{A, PATIENCE, Setting, Stage};
use super::{Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;
use crate::wait::Progress;

/// Longer than the scenario: the attacher never hears the answer.
const ENDLESS: Duration = Duration::from_secs(600);
/// Longer still, so that the attacher is waiting for the answer when it is killed, and does not give up.
const TIMEOUT: Duration = Duration::from_secs(900);

pub(super) const AFTER_PUBLISH: Scenario = Scenario {
    name: "killed-after-publish",
    about: "Killed when the array has attached and before the status says so: the next one finishes the attach.",
    setting: Setting {
        nodes: 1,
        timeout: TIMEOUT,
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(after_publish(stage)),
};

pub(super) const BEFORE_FINALIZER_REMOVAL: Scenario = Scenario {
    name: "killed-before-release",
    about: "Killed when the array has detached and before the finalizer is gone: the next one finishes the detach.",
    setting: Setting {
        nodes: 1,
        timeout: TIMEOUT,
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(before_finalizer_removal(stage)),
};

async fn after_publish(stage: &mut Stage<'_>) -> Result<()> {
    let method = Method::ControllerPublishVolume;
    stage
        .driver
        .set_faults(&[FaultRule::delay_answer("mute", method, ENDLESS)])
        .await?;
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;

    let node_id = stage.node(A).node_id().to_owned();
    stage
        .driver
        .wait_until_published(&volume.handle, &node_id, true, PATIENCE)
        .await?;
    stage.subject.crash().await?;
    let attachments = stage.attachments().await?;
    let [attachment] = &attachments[..] else {
        anyhow::bail!("one attachment, not {}", attachments.len())
    };
    ensure!(
        attachment.finalizers().contains(&stage.finalizer()),
        "the volume is published and nothing holds its attachment: {:?}",
        attachment.finalizers()
    );
    ensure!(
        !attachment.status.as_ref().is_some_and(|status| status.attached),
        "it says attached already"
    );

    stage.driver.clear_faults().await?;
    stage.subject.revive().await?;
    stage.wait_until_running("web", PATIENCE).await
}

async fn before_finalizer_removal(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;
    stage.wait_until_running("web", PATIENCE).await?;

    let method = Method::ControllerUnpublishVolume;
    stage
        .driver
        .set_faults(&[FaultRule::delay_answer("mute", method, ENDLESS)])
        .await?;
    stage.delete_pod("web").await?;
    let node_id = stage.node(A).node_id().to_owned();
    stage
        .driver
        .wait_until_published(&volume.handle, &node_id, false, PATIENCE)
        .await?;
    stage.subject.crash().await?;
    stage
        .wait_for_attachment(&volume, A, PATIENCE, "the attachment to be held", |attachment| {
            let held = attachment.is_some_and(|attachment| {
                attachment.metadata.deletion_timestamp.is_some() && !attachment.finalizers().is_empty()
            });
            Progress::of(held, || format!("it is {attachment:?}"))
        })
        .await?;

    stage.driver.clear_faults().await?;
    stage.subject.revive().await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await
}
