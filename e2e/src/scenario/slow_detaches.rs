//! More detaches hang at the driver than the attacher has workers, while a pod with another volume is created.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::test_env::{A, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use super::{ExpectedOutcome, KnownIssue, Scenario};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{Call, PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::wait::Progress;

/// Concurrency of each lane of the attacher (`--worker-threads`).
const WORKERS: usize = 10;
/// Volumes that are detached: more than that.
const LEAVING: usize = WORKERS + 4;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "slow-detaches",
    "An attach is sent to the driver while every detach worker waits for a response.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    // Longer than the scenario, so that the detaches end only when the driver responds.
    timeout: Duration::from_secs(600),
    ..ScenarioConfig::ONE_NODE
})
.with_go(ExpectedOutcome::fails(
    KnownIssue(20),
    "before the attach began, a detach had to end",
));

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let leaving = env.many_volumes(LEAVING).await?;
    let late = env.volume("late", Access::OneNode).await?;
    for (index, volume) in leaving.iter().enumerate() {
        env.pod(&format!("web-{index}"), A, &[volume]).await?;
    }
    env.wait_until_all_running(LEAVING, STEP_TIMEOUT).await?;

    let slow = FaultRule::hold_response("slow", Method::ControllerUnpublishVolume);
    env.driver.set_faults(&[slow]).await?;
    for index in 0..LEAVING {
        env.delete_pod(&format!("web-{index}")).await?;
    }
    env.driver
        .wait_for_calls(STEP_TIMEOUT, "all workers to detach", |calls| {
            let busy = calls.iter().filter(|call| call.method == UNPUBLISH).count();
            Progress::of(busy >= WORKERS, || format!("{busy} of {WORKERS} do"))
        })
        .await?;

    env.pod("late", A, &[&late]).await?;
    let attach = match wait_for_attach(env, &late).await {
        Ok(attach) => attach,
        Err(error) => {
            tracing::info!(%error, "no attach while the driver holds the detaches");
            clear_faults(env).await?;
            wait_for_attach(env, &late).await?
        }
    };
    let calls = env.driver.calls()?;
    let detaches = || calls.iter().filter(|call| call.method == UNPUBLISH);
    let ended = detaches()
        .filter(|call| call.end.as_ref().is_some_and(|end| end.at <= attach.start))
        .count();
    ensure!(
        ended == 0,
        "before the attach began, a detach had to end ({ended} of {LEAVING} had)"
    );
    let busy = detaches().filter(|call| call.start <= attach.start).count();
    ensure!(
        busy >= WORKERS,
        "when the attach began, only {busy} detaches were under way"
    );
    env.wait_until_running("late", STEP_TIMEOUT).await?;
    clear_faults(env).await?;
    for volume in &leaving {
        env.wait_until_detached(volume, A, STEP_TIMEOUT).await?;
    }
    Ok(())
}

async fn wait_for_attach(env: &TestEnv<'_>, volume: &TestVolume) -> Result<Call> {
    env.driver
        .wait_for_calls(STEP_TIMEOUT, "the late volume's attach", |calls| {
            let mut calls = calls.iter();
            match calls.find(|call| call.method == PUBLISH && call.volume == volume.handle) {
                Some(call) => Progress::Reached(call.clone()),
                None => Progress::Pending("none was sent".to_owned()),
            }
        })
        .await
}

async fn clear_faults(env: &mut TestEnv<'_>) -> Result<()> {
    env.driver
        .clear_faults()
        .await
        .context("let the detaches succeed")
}
