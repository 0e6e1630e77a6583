//! The driver's errors are very long.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::storage::v1::{VolumeAttachmentStatus, VolumeError};

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::wait::Progress;

/// The API server's limit for a message, in bytes.
const LONGEST: usize = 1024;
/// Start of each message.
const REASON: &str = "the shelf says: ";
/// Calls after which the status must have the error of the first.
const CALLS: usize = 4;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "long-errors",
    "An error longer than the API server accepts is truncated in attachError and detachError.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig::ONE_NODE)
.with_go(ExpectedOutcome::fails(
    KnownIssue(5),
    "calls failed and the attachment has no attachError",
));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volume = env.volume("data", Access::OneNode).await?;
    let attach = fault(Method::ControllerPublishVolume);
    env.driver.set_faults(&[attach]).await?;
    env.pod("web", A, &[&volume]).await?;
    let status = error_status(env, &volume, PUBLISH).await?;
    let error = status
        .attach_error
        .with_context(|| format!("{CALLS} calls failed and the attachment has no attachError"))?;
    is_cut(&error).context("the attachError")?;
    ensure!(
        error.error_code == Some(INTERNAL),
        "its errorCode is {:?}",
        error.error_code
    );
    env.wait_for_event("web", "FailedAttachVolume", REASON, STEP_TIMEOUT)
        .await?;
    env.driver.clear_faults().await?;
    env.wait_until_running("web", STEP_TIMEOUT).await?;

    let detach = fault(Method::ControllerUnpublishVolume);
    env.driver.set_faults(&[detach]).await?;
    env.delete_pod("web").await?;
    let status = error_status(env, &volume, UNPUBLISH).await?;
    let error = status
        .detach_error
        .with_context(|| format!("{CALLS} calls failed and the attachment has no detachError"))?;
    is_cut(&error).context("the detachError")?;
    env.driver.clear_faults().await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await
}

/// The number of gRPC's `INTERNAL`.
const INTERNAL: i32 = 13;

/// Fails with a message of three-byte characters, one of which crosses the API server's limit.
fn fault(method: Method) -> FaultRule {
    let story = "…".repeat(LONGEST);
    FaultRule::fail("story", method, "INTERNAL", &format!("{REASON}{story}"))
}

/// The attachment's status after enough failed calls that the first error has been written.
async fn error_status(
    env: &TestEnv<'_>,
    volume: &TestVolume,
    method: &str,
) -> Result<VolumeAttachmentStatus> {
    let what = format!("{CALLS} failed calls of {method}");
    env.driver
        .wait_for_calls(STEP_TIMEOUT, &what, |calls| {
            let failed = calls
                .iter()
                .filter(|call| call.method == method && call.end.is_some() && !call.succeeded())
                .count();
            Progress::of(failed >= CALLS, || format!("{failed} so far"))
        })
        .await?;
    let attachment = env.wait_until_attachment_exists(volume, A).await?;
    Ok(attachment.status.unwrap_or_default())
}

/// Fails unless the error was cut to the maximum length between characters.
fn is_cut(error: &VolumeError) -> Result<()> {
    let message = error.message.as_deref().context("it has no message")?;
    ensure!(message.contains(REASON), "the error is \"{message}\"");
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
