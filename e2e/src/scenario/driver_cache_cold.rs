//! kubernetes#95804: after an upgrade the driver's node pods restart, its node cache is cold, and a pod moves meanwhile.

use anyhow::{Result, ensure};
use kube::ResourceExt;

use super::Scenario;
use super::test_env::{A, B, STEP_TIMEOUT, TestEnv};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{Call, UNPUBLISH};
use crate::wait::Progress;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "driver-cache-cold",
    "While the CSINode lacks the driver and its answer is NOT_FOUND, a volume stays attached and the second node waits.",
    |env| Box::pin(run(env)),
);

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    // The array allows two nodes at the same time, so only the attacher prevents it.
    let volume = env.running_pod("first", A, "data").await?;
    let node_id = env.node(A).node_id().to_owned();
    let cold = FaultRule::fail(
        "cold",
        Method::ControllerUnpublishVolume,
        "NOT_FOUND",
        "no such node",
    );
    env.driver.set_faults(&[cold]).await?;
    env.node(A).unregister().await?;
    env.delete_pod("first").await?;
    env.pod("second", B, &[&volume]).await?;
    let what = "the detach error";
    env.wait_for_attachment(&volume, A, STEP_TIMEOUT, what, |attachment| {
        let status = attachment.and_then(|attachment| attachment.status.as_ref());
        let error = status.and_then(|status| status.detach_error.as_ref()?.message.as_deref());
        let is_not_found = error.is_some_and(|error| error.contains("code = NotFound"));
        Progress::of(is_not_found, || format!("it is {error:?}"))
    })
    .await?;
    // However often the driver answers so.
    let answered = |calls: &[Call]| {
        let unpublishes = calls
            .iter()
            .filter(|call| call.method == UNPUBLISH && call.volume == volume.handle);
        let ended = unpublishes.filter(|call| call.end.is_some()).count();
        Progress::of(ended >= 4, || format!("{ended} unpublish calls ended"))
    };
    env.driver
        .wait_for_calls(STEP_TIMEOUT, "more NOT_FOUND", answered)
        .await?;
    let ours = env.finalizer();
    env.wait_for_attachment(&volume, A, STEP_TIMEOUT, "our finalizer", |attachment| {
        let held_by = attachment.map(ResourceExt::finalizers).unwrap_or_default();
        Progress::of(held_by.contains(&ours), || format!("it is held by {held_by:?}"))
    })
    .await?;
    let published = env.driver.published().await?;
    let nodes = published.get(&volume.handle).cloned().unwrap_or_default();
    ensure!(
        nodes.len() == 1 && nodes.contains(&node_id),
        "the volume is published to {nodes:?}"
    );

    env.driver.set_faults(&[]).await?;
    env.node(A).reregister(&node_id).await?;
    env.wait_until_detached(&volume, A, STEP_TIMEOUT).await?;
    env.wait_until_running("second", STEP_TIMEOUT).await
}
