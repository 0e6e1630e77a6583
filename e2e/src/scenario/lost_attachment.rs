//! Somebody takes a volume from a node at the array itself.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::stage::{A, PATIENCE, Setting, Stage};
use super::{Oddity, Scenario, Verdict};
use crate::driver::journal::Call;
use crate::wait::Progress;

/// Volumes of which one is lost.
const VOLUMES: usize = 4;
/// How many more lists are waited for, to see that what is repaired is left alone.
const MORE_LISTS: usize = 3;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "lost-attachment",
    about: "A volume that the array lost is published again, by one call; its neighbours are left alone.",
    setting: Setting {
        nodes: 1,
        reconcile_sync: Duration::from_secs(1),
        ..Setting::DEFAULT
    },
    // It may publish a second time from a stale cache.
    go: Verdict::Fails {
        oddity: Oddity::Listed(11),
        sign: "publish calls",
        always: false,
    },
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let volumes = stage.many_volumes(VOLUMES).await?;
    for (index, volume) in volumes.iter().enumerate() {
        stage.pod(&format!("web-{index}"), A, &[volume]).await?;
    }
    stage.wait_until_all_running(VOLUMES, PATIENCE).await?;
    let before = count(&stage.driver.calls()?, PUBLISH);

    let lost = &volumes[0];
    stage.take_away(lost, A).await?;
    let node_id = stage.node(A).node_id().to_owned();
    stage
        .driver
        .wait_until_published(&lost.handle, &node_id, true, PATIENCE)
        .await?;

    let lists = count(&stage.driver.calls()?, LIST);
    stage
        .driver
        .wait_for_calls(PATIENCE, "more lists", |calls| {
            let more = count(calls, LIST) - lists;
            Progress::of(more >= MORE_LISTS, || format!("{more} so far"))
        })
        .await?;
    let more = count(&stage.driver.calls()?, PUBLISH) - before;
    ensure!(more == 1, "{more} publish calls for one volume that was lost");
    for attachment in stage.attachments().await? {
        let status = attachment.status.unwrap_or_default();
        ensure!(
            status.attached && status.attach_error.is_none() && status.detach_error.is_none(),
            "an attachment says {status:?}"
        );
    }
    Ok(())
}

const PUBLISH: &str = "ControllerPublishVolume";
const LIST: &str = "ListVolumes";

fn count(calls: &[Call], method: &str) -> usize {
    calls
        .iter()
        .filter(|call| call.method == method && call.succeeded())
        .count()
}
