//! The driver is killed and restarted during attaches, and later during detaches.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::Scenario;
use super::test_env::{A, B, STEP_TIMEOUT, ScenarioConfig, TestEnv, TestVolume};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::{PUBLISH, UNPUBLISH};
use crate::wait::Progress;

/// Volumes attached at the same time, one pod each.
const VOLUMES: usize = 20;
/// Number of finished calls at the kill, so that calls are running then.
const ENDED: usize = 5;

// The Go attacher exits when the connection is lost; the scenario restarts it.
pub(super) const SCENARIO: Scenario = Scenario::new(
    "driver-restarts",
    "Attaches and detaches that a driver crash interrupts finish after its restart; our attacher does not exit.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    latency: Duration::from_millis(100),
    ..ScenarioConfig::DEFAULT
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let volumes = env.many_volumes(VOLUMES).await?;

    hold(env, Method::ControllerPublishVolume, &volumes[0]).await?;
    for (index, volume) in volumes.iter().enumerate() {
        env.pod(&pod_name(index), [A, B][index % 2], &[volume]).await?;
    }
    kill_in_the_middle(env, PUBLISH, &volumes[0]).await?;
    env.wait_until_all_running(VOLUMES, STEP_TIMEOUT).await?;
    let published = env.driver.published().await?;
    ensure!(
        published.len() == VOLUMES,
        "{} of {VOLUMES} volumes are published",
        published.len()
    );

    hold(env, Method::ControllerUnpublishVolume, &volumes[0]).await?;
    for index in 0..VOLUMES {
        env.delete_pod(&pod_name(index)).await?;
    }
    kill_in_the_middle(env, UNPUBLISH, &volumes[0]).await?;
    for (index, volume) in volumes.iter().enumerate() {
        env.wait_until_detached(volume, [A, B][index % 2], STEP_TIMEOUT)
            .await?;
    }
    Ok(())
}

fn pod_name(index: usize) -> String {
    format!("web-{index}")
}

pub(crate) async fn hold(env: &mut TestEnv<'_>, method: Method, volume: &TestVolume) -> Result<()> {
    let rule = FaultRule::hold_response("held", method).for_volume(&volume.handle);
    env.driver.set_faults(&[rule]).await
}

/// Kills the driver after some calls have ended, while the hanging one runs, and restarts it without faults.
pub(crate) async fn kill_in_the_middle(env: &mut TestEnv<'_>, method: &str, held: &TestVolume) -> Result<()> {
    env.driver
        .wait_for_calls(
            STEP_TIMEOUT,
            "calls that ended and the one that is held",
            |calls| {
                let ended = calls
                    .iter()
                    .filter(|call| call.method == method && call.succeeded())
                    .count();
                let under_way = calls
                    .iter()
                    .any(|call| call.method == method && call.volume == held.handle && call.end.is_none());
                Progress::of(ended >= ENDED && under_way, || {
                    format!("{ended} ended, the held one: {under_way}")
                })
            },
        )
        .await?;
    env.driver.kill().await?;
    env.driver.clear_faults().await?;
    env.driver.restart().await
}
