//! How each row is measured.

mod burst;
mod handover;
mod latency;
mod restart;
mod scale;
mod slow;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::contender::Contender;
use super::ground::{Ground, Needs};
use super::quantity::{Figures, Quantity};
use super::row::Row;
use super::tracker::{Life, Tracker};
use super::{Bench, patience};
use crate::process::Process;

/// How long an attacher may take to end when asked to.
const STOP: Duration = Duration::from_secs(30);

/// Measures one contender once.
pub(super) async fn measure(
    bench: &Bench<'_>,
    row: Row,
    contender: Contender,
    round: usize,
) -> Result<Figures> {
    let name = format!("{row}-{round}-{contender}");
    let sizes = &bench.sizes;
    match row {
        Row::Size => {
            let program = contender.program(&bench.programs)?;
            let file =
                std::fs::metadata(program).with_context(|| format!("look at {}", program.display()))?;
            Ok(Figures::from([(Quantity::Size, file.len() as f64 / 1e6)]))
        }
        Row::Default => burst::measure(bench, contender, name, sizes.few).await,
        Row::Burst => burst::measure(bench, contender, name, sizes.burst).await,
        Row::Latency | Row::LatencyFar => latency::measure(bench, contender, name, row.api_delay()).await,
        Row::Slow => slow::all_attached(bench, contender, name).await,
        Row::Behind => slow::behind(bench, contender, name).await,
        Row::Restart => restart::measure(bench, contender, name).await,
        Row::HandoverTerm => handover::measure(bench, contender, name, rustix::process::Signal::TERM).await,
        Row::HandoverKill => handover::measure(bench, contender, name, rustix::process::Signal::KILL).await,
        Row::Foreign | Row::ForeignMany => scale::measure(bench, contender, name, 0).await,
        Row::Own => scale::measure(bench, contender, name, sizes.many / 10).await,
    }
}

/// Volumes that are all the contender's, on ground that is otherwise plain.
async fn plain_ground(bench: &Bench<'_>, name: String, volumes: usize) -> Result<Ground> {
    let needs = Needs {
        volumes,
        any_driver: true,
        ..Needs::default()
    };
    let ground = Ground::prepare(bench, name, needs).await?;
    ground.create_volumes(bench).await?;
    Ok(ground)
}

/// Attaches and detaches the volume at `index`: the attacher is up, its caches are full, its connections open.
async fn warm_up(bench: &Bench<'_>, ground: &Ground, index: usize) -> Result<()> {
    attach_one(bench, ground, index, patience(1)).await?;
    detach_one(bench, ground, index).await
}

/// Attaches the volume at `index` and returns when that came to be.
async fn attach_one(bench: &Bench<'_>, ground: &Ground, index: usize, within: Duration) -> Result<Instant> {
    let tracker = follow(bench, ground, index);
    ground.attach(bench, index..index + 1).await?;
    tracker
        .reached(1, within, |life| life.attached)
        .await
        .with_context(|| format!("attach {}", ground.volumes[index]))
}

async fn detach_one(bench: &Bench<'_>, ground: &Ground, index: usize) -> Result<()> {
    let tracker = follow(bench, ground, index);
    tracker.reached(1, patience(1), |life| life.seen).await?;
    ground.detach(bench, index..index + 1).await?;
    let gone = tracker.reached(1, patience(1), |life| life.gone).await;
    gone.map(drop)
        .with_context(|| format!("detach {}", ground.volumes[index]))
}

fn follow(bench: &Bench<'_>, ground: &Ground, index: usize) -> Tracker {
    Tracker::follow(bench.cluster.client(), &ground.volumes[index..=index])
}

/// Peak memory so far, in MB.
fn memory(attacher: &Process) -> f64 {
    attacher.usage().peak_rss as f64 / 1e6
}

/// What is asked for in a pile.
#[derive(Clone, Copy, Debug)]
enum Pile {
    Attaches,
    Detaches,
}

/// All at once, while the attacher is stopped, so that it finds the work piled up and only its own speed
/// counts. Returns when it was let go and when it had worked off the last one.
async fn pile_up(
    bench: &Bench<'_>,
    ground: &Ground,
    tracker: &Tracker,
    attacher: &Process,
    pile: Pile,
    volumes: usize,
) -> Result<(Instant, Instant)> {
    attacher.signal(rustix::process::Signal::STOP)?;
    let (asked, done): (Milestone, Milestone) = match pile {
        Pile::Attaches => {
            ground.attach(bench, 0..volumes).await?;
            (|life| life.seen, |life| life.attached)
        }
        Pile::Detaches => {
            ground.detach(bench, 0..volumes).await?;
            (|life| life.deleting, |life| life.gone)
        }
    };
    tracker.reached(volumes, patience(volumes), asked).await?;
    let released = Instant::now();
    attacher.signal(rustix::process::Signal::CONT)?;
    let finished = tracker
        .reached(volumes, patience(volumes), done)
        .await
        .with_context(|| format!("work off the pile of {pile:?}"))?;
    Ok((released, finished))
}

/// When something came about in the life of an attachment.
type Milestone = fn(&Life) -> Option<Instant>;
