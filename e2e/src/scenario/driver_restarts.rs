//! The driver is killed and started again while attaches, and later detaches, are under way.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::stage::{A, B, PATIENCE, Setting, Stage, StageVolume};
use super::{Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::wait::Progress;

/// Volumes attached at the same time, one pod each.
const VOLUMES: usize = 20;
/// How many calls must have ended before the driver is killed: it dies in the middle, not at an end.
const ENDED: usize = 5;
/// Longer than the scenario: the call that meets it is surely under way when the driver dies.
const ENDLESS: Duration = Duration::from_secs(600);

pub(super) const SCENARIO: Scenario = Scenario {
    name: "driver-restarts",
    about: "Whatever was under way when the driver died is done when it is back; ours never ends for it.",
    setting: Setting {
        latency: Duration::from_millis(100),
        ..Setting::DEFAULT
    },
    // It exits when the connection is lost and is started again, which the scenario allows it.
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volumes = stage.many_volumes(VOLUMES).await?;

    hold(stage, Method::ControllerPublishVolume, &volumes[0]).await?;
    for (index, volume) in volumes.iter().enumerate() {
        stage.pod(&pod_name(index), [A, B][index % 2], &[volume]).await?;
    }
    kill_in_the_middle(stage, "ControllerPublishVolume", &volumes[0]).await?;
    stage.wait_until_all_running(VOLUMES, PATIENCE).await?;
    let published = stage.driver.published().await?;
    ensure!(
        published.len() == VOLUMES,
        "{} of {VOLUMES} volumes are published",
        published.len()
    );

    hold(stage, Method::ControllerUnpublishVolume, &volumes[0]).await?;
    for index in 0..VOLUMES {
        stage.delete_pod(&pod_name(index)).await?;
    }
    kill_in_the_middle(stage, "ControllerUnpublishVolume", &volumes[0]).await?;
    for (index, volume) in volumes.iter().enumerate() {
        stage
            .wait_until_detached(volume, [A, B][index % 2], PATIENCE)
            .await?;
    }
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    Ok(())
}

fn pod_name(index: usize) -> String {
    format!("web-{index}")
}

async fn hold(stage: &mut Stage<'_>, method: Method, volume: &StageVolume) -> Result<()> {
    let rule =
        FaultRule::delay_answer(&format!("hold-{method:?}"), method, ENDLESS).for_volume(&volume.handle);
    stage.driver.set_faults(&[rule]).await
}

/// Kills the driver when some calls have ended and the held one has not, and starts it again without faults.
async fn kill_in_the_middle(stage: &mut Stage<'_>, method: &str, held: &StageVolume) -> Result<()> {
    stage
        .driver
        .wait_for_calls(PATIENCE, "calls that ended and the one that is held", |calls| {
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
        })
        .await?;
    stage.driver.kill().await?;
    stage.driver.clear_faults().await?;
    stage.driver.restart().await
}
