//! An administrator unpublishes a volume at the array itself.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::journal::{Call, PUBLISH};
use crate::wait::Progress;

/// Volumes of which one is lost.
const VOLUMES: usize = 4;
/// Number of further lists after the repair, which must cause no other call.
const MORE_LISTS: usize = 3;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "lost-attachment",
    "A volume unpublished out of band is republished by one call; other volumes get none.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    reconcile_sync: Duration::from_secs(1),
    ..ScenarioConfig::ONE_NODE
})
// The Go attacher may publish a second time from a stale cache.
.with_go(ExpectedOutcome::may_fail(KnownIssue(11), "publish calls"));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volumes = env.many_volumes(VOLUMES).await?;
    for (index, volume) in volumes.iter().enumerate() {
        env.pod(&format!("web-{index}"), A, &[volume]).await?;
    }
    env.wait_until_all_running(VOLUMES, STEP_TIMEOUT).await?;
    let before = count(&env.driver.calls()?, PUBLISH);

    let lost = &volumes[0];
    env.unpublish_out_of_band(lost, A).await?;
    env.wait_until_published(lost, A, true).await?;

    let lists = count(&env.driver.calls()?, LIST);
    env.driver
        .wait_for_calls(STEP_TIMEOUT, "more lists", |calls| {
            let more = count(calls, LIST) - lists;
            Progress::of(more >= MORE_LISTS, || format!("{more} so far"))
        })
        .await?;
    let more = count(&env.driver.calls()?, PUBLISH) - before;
    ensure!(more == 1, "{more} publish calls for one volume that was lost");
    for attachment in env.attachments().await? {
        let status = attachment.status.unwrap_or_default();
        ensure!(
            status.attached && status.attach_error.is_none() && status.detach_error.is_none(),
            "an attachment has the status {status:?}"
        );
    }
    Ok(())
}

const LIST: &str = "ListVolumes";

fn count(calls: &[Call], method: &str) -> usize {
    calls
        .iter()
        .filter(|call| call.method == method && call.succeeded())
        .count()
}
