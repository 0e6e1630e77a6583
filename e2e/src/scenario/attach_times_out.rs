//! The driver attaches but its answer is lost: nobody knows whether the volume is on the node.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use kube::ResourceExt;

use super::stage::{A, PATIENCE, Setting, Stage};
use super::{Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "attach-times-out",
    about: "An attach without an answer is never taken for a failed one: the volume is unpublished when the attachment goes.",
    setting: Setting {
        nodes: 1,
        timeout: Duration::from_secs(2),
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let lost = FaultRule::hang_after_effect("lost-answer", Method::ControllerPublishVolume);
    stage.driver.set_faults(&[lost]).await?;
    let volume = stage.volume("data", Access::OneNode).await?;
    stage.pod("web", A, &[&volume]).await?;

    let node_id = stage.node(A).node_id().to_owned();
    stage
        .driver
        .wait_until_published(&volume.handle, &node_id, true, PATIENCE)
        .await?;
    let attachment = stage
        .wait_for_attachment(
            &volume,
            A,
            PATIENCE,
            "an attachError about the time-out",
            |attachment| {
                let status = attachment.and_then(|attachment| attachment.status.as_ref());
                match (attachment, status.and_then(|status| status.attach_error.as_ref())) {
                    (Some(attachment), Some(_)) => Progress::Reached(attachment.clone()),
                    _ => Progress::Pending(format!("its status is {status:?}")),
                }
            },
        )
        .await?;
    let status = attachment.status.clone().context("it was found by its status")?;
    ensure!(
        !status.attached,
        "it says attached without an answer from the driver"
    );
    ensure!(
        attachment.finalizers().contains(&stage.finalizer()),
        "nothing holds it: {:?}",
        attachment.finalizers()
    );

    // The controller must have taken note of the failure: only then does it know that there may be something
    // to detach once the pod is gone.
    stage
        .wait_for_event("web", "FailedAttachVolume", "DeadlineExceeded", PATIENCE)
        .await?;
    stage.delete_pod("web").await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await?;
    let published = stage.driver.published().await?;
    ensure!(
        published.is_empty(),
        "the attachment is gone but the volume is not: {published:?}"
    );
    let unpublished =
        stage.driver.calls()?.iter().any(|call| {
            call.method == "ControllerUnpublishVolume" && call.node == node_id && call.succeeded()
        });
    ensure!(unpublished, "the attacher never unpublished the volume");
    Ok(())
}
