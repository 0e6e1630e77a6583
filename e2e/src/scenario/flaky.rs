//! Thousands of attaches and detaches with a driver that fails one call in ten, while attacher and driver are killed at random
//! times: at the end, the published volumes of the array match the VolumeAttachments.
//!
//! The scenario creates and deletes the VolumeAttachments itself: the attach/detach controller is slower and avoids most
//! of the difficult cases, such as an attachment that is deleted before it is attached. The seed determines all random
//! choices: which volume is attached to which node and for how long, when which program is killed, and which call fails
//! how. The order of calls for different volumes is not deterministic.

mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use futures::future::try_join_all;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::runtime::watcher;
use tokio::sync::watch;

use self::worker::Worker;
use super::Scenario;
use super::test_env::{ScenarioConfig, TestEnv};
use crate::attacher::AttacherProcess;
use crate::driver::Driver;
use crate::driver::array::NodesByVolume;
use crate::driver::journal::{Call, Line, PUBLISH, UNPUBLISH};
use crate::fixture::Access;
use crate::wait::{self, Progress};

/// Default number of attachments; each is attached and detached, or deleted earlier.
const ATTACHMENTS: usize = 500;
/// Concurrent workers, each with its own volumes.
const WORKERS: usize = 24;
/// Single-node and multi-node volumes of each worker.
const EACH: (usize, usize) = (2, 1);
const NODES: usize = 5;
/// Minimum and maximum number of attachments between two kills.
const BETWEEN_KILLS: (usize, usize) = (60, 160);
/// Timeout of the scenario; tens of thousands of attachments take an hour.
const WHOLE: Duration = Duration::from_secs(3600);
/// Timeout for the success of the last calls.
const LONG: Duration = Duration::from_secs(180);
/// Name of the driver's fault scenario.
const FAULTS: &str = "flaky-10pct";
/// Its rule that fails a call after the effect.
const AFTER_EFFECT_RULE: &str = "flaky-10pct-unheard";
/// Minimum share of calls with a fault; a tenth is expected.
const LEAST_FAULTS: f64 = 0.06;

pub(super) const SCENARIO: Scenario = Scenario::new(
    "flaky",
    "With one driver call in ten failing and processes killed, array and VolumeAttachments agree at the end and nothing leaks.",
    |env| Box::pin(run(env)),
)
.with_config(ScenarioConfig {
    nodes: NODES,
    latency: Duration::from_millis(5),
    within: WHOLE,
    node_drivers: false,
    ..ScenarioConfig::DEFAULT
});

async fn run(env: &mut TestEnv<'_>) -> Result<()> {
    let randomness = env.ctx().randomness();
    let attachments = randomness.attachments.unwrap_or(ATTACHMENTS);
    let mut volumes = env.volumes("one", WORKERS * EACH.0, Access::OneNode).await?;
    let mut shared = env.volumes("many", WORKERS * EACH.1, Access::ManyNodes).await?;
    let began = watch::Sender::new(0);
    let mut rng = Rng::with_seed(randomness.seed);
    let mut workers: Vec<_> = (0..WORKERS)
        .map(|number| {
            let mut mine = volumes.split_off(volumes.len() - EACH.0);
            mine.extend(shared.split_off(shared.len() - EACH.1));
            let quota = attachments / WORKERS + usize::from(number < attachments % WORKERS);
            Worker::new(env, rng.fork(), mine, &began).with_quota(quota)
        })
        .collect();
    let mut killer = Killer {
        rng: rng.fork(),
        seed: randomness.seed,
        driver_starts: 0,
        attacher_kills: 0,
        began: began.subscribe(),
    };
    killer.restart(&mut env.driver).await?;

    let work = try_join_all(workers.iter_mut().map(Worker::work));
    let (driver, attacher) = (&mut env.driver, &mut env.attacher);
    tokio::select! {
        biased;
        worked = work => worked.map(drop)?,
        killed = killer.make(driver, attacher) => killed?,
    }
    // The killer may have been cancelled between a kill and a restart.
    killer.end(driver, attacher).await?;

    let held: BTreeSet<_> = workers.iter().flat_map(Worker::held).collect();
    wait_until_attached(env, &held).await?;
    verify_array_matches_attachments(env, &held).await?;
    try_join_all(workers.iter_mut().map(Worker::delete_all)).await?;
    env.wait_until_all_detached(LONG).await?;
    report(env, &killer, attachments, held.len())
}

// === killer ===

/// Kills the attacher and the driver.
struct Killer {
    rng: Rng,
    seed: u64,
    /// Number of driver starts with faults.
    driver_starts: u64,
    attacher_kills: u64,
    /// Number of created attachments.
    began: watch::Receiver<usize>,
}

impl Killer {
    /// Kills attacher and driver in turn, each after a random number of attachments.
    async fn make(&mut self, driver: &mut Driver, attacher: &mut AttacherProcess) -> Result<()> {
        let mut drivers_turn = self.rng.bool();
        loop {
            let next = *self.began.borrow() + self.rng.usize(BETWEEN_KILLS.0..=BETWEEN_KILLS.1);
            if self.began.wait_for(|began| *began >= next).await.is_err() {
                return Ok(());
            }
            if drivers_turn {
                self.restart(driver).await?;
            } else {
                self.attacher_kills += 1;
                attacher.crash().await?;
                attacher.revive().await?;
            }
            drivers_turn = !drivers_turn;
        }
    }

    /// Starts the programs that do not run.
    async fn end(&mut self, driver: &mut Driver, attacher: &mut AttacherProcess) -> Result<()> {
        attacher.revive().await?;
        self.restart(driver).await
    }

    /// Restarts the driver with the same faults and another seed.
    async fn restart(&mut self, driver: &mut Driver) -> Result<()> {
        let seed = self.seed.wrapping_add(self.driver_starts);
        self.driver_starts += 1;
        driver
            .restart_with_scenario(FAULTS, seed, &[AFTER_EFFECT_RULE])
            .await
    }
}

// === verification ===

/// Waits until exactly the workers' remaining attachments exist, all of them attached.
async fn wait_until_attached(env: &TestEnv<'_>, held: &BTreeSet<(String, String)>) -> Result<()> {
    let attacher = env.driver.name();
    let all = Api::<VolumeAttachment>::all(env.client());
    let what = "all attachments that were not deleted to be attached";
    wait::for_objects(&all, watcher::Config::default(), LONG, what, |seen| {
        let mine = || seen.values().filter(|va| va.spec.attacher == attacher);
        let attached = mine().filter(|va| va.status.as_ref().is_some_and(|status| status.attached));
        let (attached, all) = (attached.count(), mine().count());
        Progress::of((attached, all) == (held.len(), held.len()), || {
            format!("{attached} of {all} are, and {} are to be", held.len())
        })
    })
    .await
}

/// Compares the array's list with the VolumeAttachments and with the requested attachments.
async fn verify_array_matches_attachments(
    env: &TestEnv<'_>,
    held: &BTreeSet<(String, String)>,
) -> Result<()> {
    let observations = env.observations().await?;
    let mut expected = NodesByVolume::new();
    let mut attached = BTreeSet::new();
    for attachment in &observations.attachments {
        let (volume, node) = observations
            .publish_target(attachment)
            .context("an attachment must be of a volume and a node of the test environment")?;
        expected
            .entry(volume.to_owned())
            .or_default()
            .insert(node.to_owned());
        attached.insert((volume.to_owned(), node.to_owned()));
    }
    ensure!(
        attached == *held,
        "the attachments are {attached:?}, expected {held:?}"
    );
    ensure!(
        observations.published == expected,
        "the array has published {:?}, the attachments are {expected:?}",
        observations.published
    );
    Ok(())
}

/// Logs the totals of the run, and fails if fewer calls than expected had a fault.
fn report(env: &TestEnv<'_>, killer: &Killer, attachments: usize, held: usize) -> Result<()> {
    let lines = env.driver.journal().lines()?;
    let moves = |call: &Call| [PUBLISH, UNPUBLISH].contains(&&*call.method);
    let calls: Vec<_> = env.driver.calls_of(&lines).into_iter().filter(moves).collect();
    let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
    for line in &lines {
        if let Line::End { fault: Some(id), .. } = line {
            *faults.entry(id).or_default() += 1;
        }
    }
    let faulty: usize = faults.values().sum();
    let succeeded = calls.iter().filter(|call| call.succeeded()).count();
    tracing::info!(
        seed = killer.seed,
        attachments,
        held,
        calls = calls.len(),
        succeeded,
        faulty,
        ?faults,
        driver_starts = killer.driver_starts,
        attacher_kills = killer.attacher_kills,
        "flaky"
    );
    ensure!(
        faulty as f64 >= LEAST_FAULTS * calls.len() as f64,
        "only {faulty} of {} calls had a fault: {faults:?}",
        calls.len()
    );
    Ok(())
}
