//! More detaches hang at the driver than there are workers, and a pod comes with another volume.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::stage::{A, PATIENCE, Setting, Stage};
use super::{Oddity, Scenario, Verdict};
use crate::driver::fault::{FaultRule, Method};
use crate::driver::journal::Call;
use crate::fixture::Access;
use crate::wait::Progress;

/// Workers the attacher has for each kind of work (`--worker-threads`).
const WORKERS: usize = 10;
/// Volumes that are detached: more than that.
const LEAVING: usize = WORKERS + 4;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "slow-detaches",
    about: "An attach is sent to the driver while all that is done for detaches waits for its answer.",
    setting: Setting {
        nodes: 1,
        // Longer than a pod takes to get to the attacher on a machine that is busy with other scenarios.
        timeout: Duration::from_secs(25),
        ..Setting::DEFAULT
    },
    go: Verdict::Fails {
        oddity: Oddity::Listed(20),
        sign: "before the attach began, a detach had to end",
        always: true,
    },
    play: |stage| Box::pin(play(stage)),
};

const PUBLISH: &str = "ControllerPublishVolume";
const UNPUBLISH: &str = "ControllerUnpublishVolume";

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let leaving = stage.many_volumes(LEAVING).await?;
    let late = stage.volume("late", Access::OneNode).await?;
    for (index, volume) in leaving.iter().enumerate() {
        stage.pod(&format!("web-{index}"), A, &[volume]).await?;
    }
    stage.wait_until_all_running(LEAVING, PATIENCE).await?;

    let slow = FaultRule::hang_after_effect("slow", Method::ControllerUnpublishVolume);
    stage.driver.set_faults(&[slow]).await?;
    for index in 0..LEAVING {
        stage.delete_pod(&format!("web-{index}")).await?;
    }
    stage
        .driver
        .wait_for_calls(PATIENCE, "all workers to detach", |calls| {
            let busy = calls.iter().filter(|call| call.method == UNPUBLISH).count();
            Progress::of(busy >= WORKERS, || format!("{busy} of {WORKERS} do"))
        })
        .await?;

    stage.pod("late", A, &[&late]).await?;
    let attach: Call = stage
        .driver
        .wait_for_calls(PATIENCE, "the late volume's attach", |calls| {
            let mut calls = calls.iter();
            match calls.find(|call| call.method == PUBLISH && call.volume == late.handle) {
                Some(call) => Progress::Reached(call.clone()),
                None => Progress::Pending("none was sent".to_owned()),
            }
        })
        .await?;
    let calls = stage.driver.calls()?;
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
    stage.wait_until_running("late", PATIENCE).await?;
    stage
        .driver
        .clear_faults()
        .await
        .context("let the detaches succeed")
}
