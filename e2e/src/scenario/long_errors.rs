//! The driver tells a long story in its errors.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::{VolumeAttachmentStatus, VolumeError};

use super::stage::{A, PATIENCE, Setting, Stage, StageVolume};
use super::{Oddity, Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::fixture::Access;
use crate::wait::Progress;

/// What the API server takes for a message, in bytes.
const LONGEST: usize = 1024;
/// How each story begins.
const REASON: &str = "the shelf says: ";
/// Calls after which the first of them must be told of.
const CALLS: usize = 4;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "long-errors",
    about: "Of an error that is longer than the API server takes, the beginning is told, for attach and for detach.",
    setting: Setting {
        nodes: 1,
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(5),
        sign: "calls failed and the attachment has no attachError",
        always: true,
    },
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volume = stage.volume("data", Access::OneNode).await?;
    let attach = fault(Method::ControllerPublishVolume);
    stage.driver.set_faults(&[attach]).await?;
    stage.pod("web", A, &[&volume]).await?;
    let status = told(stage, &volume, "ControllerPublishVolume").await?;
    let error = status
        .attach_error
        .with_context(|| format!("{CALLS} calls failed and the attachment has no attachError"))?;
    is_cut(&error).context("the attachError")?;
    ensure!(
        error.error_code == Some(INTERNAL),
        "its errorCode is {:?}",
        error.error_code
    );
    stage
        .wait_for_event("web", "FailedAttachVolume", REASON, PATIENCE)
        .await?;
    stage.driver.clear_faults().await?;
    stage.wait_until_running("web", PATIENCE).await?;

    let detach = fault(Method::ControllerUnpublishVolume);
    stage.driver.set_faults(&[detach]).await?;
    stage.delete_pod("web").await?;
    let status = told(stage, &volume, "ControllerUnpublishVolume").await?;
    let error = status
        .detach_error
        .with_context(|| format!("{CALLS} calls failed and the attachment has no detachError"))?;
    is_cut(&error).context("the detachError")?;
    stage.driver.clear_faults().await?;
    stage.wait_until_detached(&volume, A, PATIENCE).await
}

/// The number of gRPC's `INTERNAL`.
const INTERNAL: i32 = 13;

/// Fails with a message of characters of three bytes, most of which do not end where the API server's patience does.
fn fault(method: Method) -> FaultRule {
    let story = "…".repeat(LONGEST);
    FaultRule::fail("story", method, "INTERNAL", &format!("{REASON}{story}"))
}

/// The attachment's status when the driver has failed so many calls that the first of them has long been dealt with.
async fn told(stage: &Stage<'_>, volume: &StageVolume, method: &str) -> Result<VolumeAttachmentStatus> {
    let what = format!("{CALLS} failed calls of {method}");
    stage
        .driver
        .wait_for_calls(PATIENCE, &what, |calls| {
            let failed = calls
                .iter()
                .filter(|call| call.method == method && call.end.is_some() && !call.succeeded())
                .count();
            Progress::of(failed >= CALLS, || format!("{failed} so far"))
        })
        .await?;
    stage
        .wait_for_attachment(
            volume,
            A,
            PATIENCE,
            "the attachment",
            |attachment| match attachment {
                Some(attachment) => Progress::Reached(attachment.status.clone().unwrap_or_default()),
                None => Progress::Pending("there is none".to_owned()),
            },
        )
        .await
}

/// As long as can be, whole characters, and the beginning of the story.
fn is_cut(error: &VolumeError) -> Result<()> {
    let message = error.message.as_deref().context("it has no message")?;
    ensure!(message.contains(REASON), "it says \"{message}\"");
    ensure!(
        message.len() <= LONGEST,
        "it has {} bytes, and the API server took it",
        message.len()
    );
    ensure!(
        message.len() > LONGEST - '…'.len_utf8(),
        "of the message only {} bytes are left",
        message.len()
    );
    ensure!(
        !message.contains(char::REPLACEMENT_CHARACTER),
        "a character was cut in two: \"{message}\""
    );
    Ok(())
}
