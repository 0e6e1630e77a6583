//! Thousands of attaches and detaches through a driver of which one call in ten goes wrong, while attacher and
//! driver are killed now and then: at the end the array has what the attachments say, and nothing else.
//!
//! VolumeAttachments are made and deleted by hand: the attach/detach controller would take its time, and would
//! keep away from the attacher most of what makes it hard here, such as an attachment that is deleted before it
//! is attached. All chance comes from the site's seed: who attaches what where and how long it stays, when
//! which program is killed, and which call goes wrong how. In which order the calls of different volumes meet
//! is up to the machine.

mod crew;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use futures::future::try_join_all;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::runtime::watcher;
use tokio::sync::watch;

use self::crew::Hand;
use super::stage::{Setting, Stage};
use super::{Scenario, Verdict};
use crate::driver::Driver;
use crate::driver::journal::{Call, Line};
use crate::fixture::Access;
use crate::subject::Subject;
use crate::wait::{self, Progress};

/// Attachments made unless the settings say otherwise; each is attached and detached, or given up before that.
const ATTACHMENTS: usize = 500;
/// How many people work at the same time, each with volumes of their own.
const HANDS: usize = 24;
/// Volumes of each that one node may have, and that many nodes may have.
const EACH: (usize, usize) = (2, 1);
const NODES: usize = 5;
/// The least and the greatest number of attachments between two kills.
const BETWEEN_KILLS: (usize, usize) = (60, 160);
/// How long everything together may take: an hour for tens of thousands, and never long in itself.
const WHOLE: Duration = Duration::from_secs(3600);
/// How long the last calls may take to succeed at last.
const LONG: Duration = Duration::from_secs(180);
/// What goes wrong, by its name in the driver.
const FAULTS: &str = "flaky-10pct";
/// The rule of it that spoils the answer only.
const SPARING: &str = "flaky-10pct-unheard";
/// The share of calls that must have gone wrong, or the run has shown nothing; it is ten in a hundred on average.
const LEAST_SPOILED: f64 = 0.06;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "flaky",
    about: "With one call in ten spoiled and programs killed, the array ends with what the attachments say, and nothing leaks.",
    setting: Setting {
        nodes: NODES,
        latency: Duration::from_millis(5),
        within: WHOLE,
        ..Setting::DEFAULT
    },
    go: Verdict::Passes,
    play: |stage| Box::pin(play(stage)),
};

async fn play(stage: &mut Stage<'_>) -> Result<()> {
    let chance = stage.site().chance();
    let attachments = chance.attachments.unwrap_or(ATTACHMENTS);
    let mut volumes = stage.volumes("one", HANDS * EACH.0, Access::OneNode).await?;
    let mut shared = stage.volumes("many", HANDS * EACH.1, Access::ManyNodes).await?;
    let began = watch::Sender::new(0);
    let mut rng = Rng::with_seed(chance.seed);
    let mut hands: Vec<_> = (0..HANDS)
        .map(|number| {
            let mut mine = volumes.split_off(volumes.len() - EACH.0);
            mine.extend(shared.split_off(shared.len() - EACH.1));
            let quota = attachments / HANDS + usize::from(number < attachments % HANDS);
            Hand::new(stage, rng.fork(), mine, &began).with_quota(quota)
        })
        .collect();
    let mut trouble = Trouble {
        rng: rng.fork(),
        seed: chance.seed,
        driver_starts: 0,
        attacher_kills: 0,
        began: began.subscribe(),
    };
    trouble.restart(&mut stage.driver).await?;

    let work = try_join_all(hands.iter_mut().map(Hand::work));
    let (driver, subject) = (&mut stage.driver, &mut stage.subject);
    tokio::select! {
        biased;
        worked = work => worked.map(drop)?,
        troubled = trouble.make(driver, subject) => troubled?,
    }
    // Wherever the trouble was given up, both are needed for the rest.
    trouble.end(driver, subject).await?;

    let held: BTreeSet<_> = hands.iter().flat_map(Hand::held).collect();
    wait_until_attached(stage, &held).await?;
    array_has_what_attachments_say(stage, &held).await?;
    try_join_all(hands.iter_mut().map(Hand::let_go)).await?;
    stage.wait_until_all_detached(LONG).await?;
    let published = stage.driver.published().await?;
    ensure!(published.is_empty(), "still published: {published:?}");
    tell(stage, &trouble, attachments, held.len())
}

// === trouble ===

/// Kills the attacher and the driver.
struct Trouble {
    rng: Rng,
    seed: u64,
    /// How often the driver was started with its faults.
    driver_starts: u64,
    attacher_kills: u64,
    /// How many attachments were made.
    began: watch::Receiver<usize>,
}

impl Trouble {
    /// Kills one of the two in turn, after as many attachments as chance has it.
    async fn make(&mut self, driver: &mut Driver, subject: &mut Subject) -> Result<()> {
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
                subject.crash().await?;
                subject.revive().await?;
            }
            drivers_turn = !drivers_turn;
        }
    }

    /// Has both programs running, whatever was under way.
    async fn end(&mut self, driver: &mut Driver, subject: &mut Subject) -> Result<()> {
        subject.revive().await?;
        self.restart(driver).await
    }

    /// Kills the driver, if it runs, and starts it again: with the same faults, but a fate of its own.
    async fn restart(&mut self, driver: &mut Driver) -> Result<()> {
        let seed = self.seed.wrapping_add(self.driver_starts);
        self.driver_starts += 1;
        driver.restart_with_scenario(FAULTS, seed, &[SPARING]).await
    }
}

// === what is left ===

/// Waits until the driver's attachments are the ones held, all of them attached.
async fn wait_until_attached(stage: &Stage<'_>, held: &BTreeSet<(String, String)>) -> Result<()> {
    let attacher = stage.driver.name();
    let all = Api::<VolumeAttachment>::all(stage.client());
    let what = "all attachments that nobody deleted to be attached";
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

/// Compares the array's own list with the attachments, and with what was asked for.
async fn array_has_what_attachments_say(stage: &Stage<'_>, held: &BTreeSet<(String, String)>) -> Result<()> {
    let evidence = stage.evidence().await?;
    let mut said: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut places = BTreeSet::new();
    for attachment in &evidence.attachments {
        let (volume, node) = evidence
            .place_of(attachment)
            .context("an attachment must be of a volume and a node of the stage")?;
        said.entry(volume.to_owned()).or_default().insert(node.to_owned());
        places.insert((volume.to_owned(), node.to_owned()));
    }
    ensure!(
        places == *held,
        "the attachments are {places:?}, and these were asked for: {held:?}"
    );
    ensure!(
        evidence.published == said,
        "the array has {:?}, and the attachments say {said:?}",
        evidence.published
    );
    Ok(())
}

/// Says what the run consisted of, and fails if next to nothing of it went wrong.
fn tell(stage: &Stage<'_>, trouble: &Trouble, attachments: usize, held: usize) -> Result<()> {
    let lines = stage.driver.journal().lines()?;
    let moves =
        |call: &Call| ["ControllerPublishVolume", "ControllerUnpublishVolume"].contains(&&*call.method);
    let calls: Vec<_> = stage.driver.calls_of(&lines).into_iter().filter(moves).collect();
    let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
    for line in &lines {
        if let Line::End { fault: Some(id), .. } = line {
            *faults.entry(id).or_default() += 1;
        }
    }
    let spoiled: usize = faults.values().sum();
    let succeeded = calls.iter().filter(|call| call.succeeded()).count();
    tracing::info!(
        seed = trouble.seed,
        attachments,
        held,
        calls = calls.len(),
        succeeded,
        spoiled,
        ?faults,
        driver_starts = trouble.driver_starts,
        attacher_kills = trouble.attacher_kills,
        "flaky"
    );
    ensure!(
        spoiled as f64 >= LEAST_SPOILED * calls.len() as f64,
        "only {spoiled} of {} calls went wrong: {faults:?}",
        calls.len()
    );
    Ok(())
}
