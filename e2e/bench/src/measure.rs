//! The measurement of each row.

mod burst;
mod handover;
mod latency;
mod own;
mod refusing;
mod restart;
mod scale;
mod slow;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::bench_env::{BenchEnv, Needs};
use super::implementation::Implementation;
use super::quantity::{Figures, Quantity};
use super::row::Row;
use super::tracker::{Life, Tracker};
use super::{Harness, timeout_for};
use csi_e2e::process::Process;

/// Measures one implementation once.
pub(super) async fn measure(
    harness: &Harness<'_>,
    row: Row,
    implementation: Implementation,
    round: usize,
) -> Result<Figures> {
    let name = format!("{row}-{round}-{implementation}");
    let sizes = &harness.sizes;
    match row {
        Row::Size => {
            let program = implementation.program(&harness.programs)?;
            let file =
                std::fs::metadata(program).with_context(|| format!("look at {}", program.display()))?;
            Ok(Figures::from([(Quantity::Size, file.len() as f64 / 1e6)]))
        }
        Row::Default => burst::measure(harness, implementation, name, sizes.few).await,
        Row::Burst => burst::measure(harness, implementation, name, sizes.burst).await,
        Row::Latency | Row::LatencyFar => {
            latency::measure(harness, implementation, name, row.api_delay()).await
        }
        Row::Slow => slow::all_attached(harness, implementation, name).await,
        Row::Behind => slow::behind(harness, implementation, name).await,
        Row::LockedNodes | Row::LockedNode => refusing::locked(harness, implementation, name, row).await,
        Row::Throttled => refusing::throttled(harness, implementation, name).await,
        Row::SickNode => refusing::sick_node(harness, implementation, name).await,
        Row::NodeFull => refusing::node_full(harness, implementation, name).await,
        Row::Outage | Row::OutageMany => refusing::outage(harness, implementation, name, row).await,
        Row::Restart => restart::measure(harness, implementation, name).await,
        Row::HandoverTerm => {
            handover::measure(harness, implementation, name, rustix::process::Signal::TERM).await
        }
        Row::HandoverKill => {
            handover::measure(harness, implementation, name, rustix::process::Signal::KILL).await
        }
        Row::Foreign | Row::ForeignMany => scale::measure(harness, implementation, name).await,
        Row::Own => own::measure(harness, implementation, sizes.own).await,
        Row::OwnMany => own::measure(harness, implementation, sizes.many).await,
    }
}

/// An environment in which all volumes belong to the implementation, without other load.
async fn plain_env(harness: &Harness<'_>, name: String, volumes: usize) -> Result<BenchEnv> {
    let needs = Needs {
        volumes,
        any_driver: true,
        ..Needs::default()
    };
    BenchEnv::prepare(harness, name, needs).await
}

/// Runs `work` with an attacher and kills it: its remaining work could take minutes and is not measured.
async fn with_attacher(
    harness: &Harness<'_>,
    implementation: Implementation,
    env: &BenchEnv,
    work: impl AsyncFnOnce(&Process) -> Result<Figures>,
) -> Result<Figures> {
    let spec = implementation.spec("attacher", &harness.programs, env)?;
    let attacher = Process::spawn(harness.run, spec)?;
    let figures = attacher.while_alive(work(&attacher)).await;
    let killed = attacher.kill().await;
    figures.and_then(|figures| killed.map(|_| figures))
}

/// Attaches and detaches the volume at `index` as warm-up: the process is running, its caches are synced, its
/// connections established.
async fn warm_up(harness: &Harness<'_>, env: &BenchEnv, index: usize) -> Result<()> {
    attach_one(harness, env, index).await?;
    detach_one(harness, env, index).await
}

/// Attaches the volume at `index` and returns the time at which it was attached.
async fn attach_one(harness: &Harness<'_>, env: &BenchEnv, index: usize) -> Result<Instant> {
    let tracker = follow(harness, env, index);
    env.attach(harness, index..index + 1).await?;
    tracker
        .reached(1, timeout_for(1), |life| life.attached)
        .await
        .with_context(|| format!("attach {}", env.volumes[index]))
}

async fn detach_one(harness: &Harness<'_>, env: &BenchEnv, index: usize) -> Result<()> {
    let tracker = follow(harness, env, index);
    tracker.reached(1, timeout_for(1), |life| life.seen).await?;
    env.detach(harness, index..index + 1).await?;
    let gone = tracker.reached(1, timeout_for(1), |life| life.gone).await;
    gone.map(drop)
        .with_context(|| format!("detach {}", env.volumes[index]))
}

/// Measures the start of an attacher with one VolumeAttachment to attach, then runs `work`, which returns more figures.
async fn start_with_an_attach(
    harness: &Harness<'_>,
    implementation: Implementation,
    env: &BenchEnv,
    within: Duration,
    work: impl AsyncFnOnce() -> Result<Figures>,
) -> Result<Figures> {
    let tracker = follow(harness, env, 0);
    env.attach(harness, 0..1).await?;
    tracker.reached(1, timeout_for(1), |life| life.seen).await?;
    let started = Instant::now();
    with_attacher(harness, implementation, env, async |attacher| {
        let ready = tracker.reached(1, within, |life| life.attached).await?;
        let start_cpu = attacher.usage().cpu.as_secs_f64();
        let mut figures = work().await?;
        figures.extend([
            (Quantity::Ready, (ready - started).as_secs_f64()),
            (Quantity::StartCpu, start_cpu),
            (Quantity::Memory, memory(attacher)),
        ]);
        Ok(figures)
    })
    .await
}

fn follow(harness: &Harness<'_>, env: &BenchEnv, index: usize) -> Tracker {
    Tracker::follow(harness.cluster.client(), &env.volumes[index..=index])
}

/// Peak memory so far, in MB.
fn memory(attacher: &Process) -> f64 {
    attacher.usage().peak_rss as f64 / 1e6
}

/// The operation of a queued burst.
#[derive(Clone, Copy, Debug)]
enum Pile {
    Attaches,
    Detaches,
}

/// Queues all operations while the attacher is stopped (SIGSTOP), so that only its own speed counts. Returns
/// when it was continued and when it had completed the last one.
async fn run_pile(
    harness: &Harness<'_>,
    env: &BenchEnv,
    tracker: &Tracker,
    attacher: &Process,
    pile: Pile,
    volumes: usize,
) -> Result<(Instant, Instant)> {
    attacher.signal(rustix::process::Signal::STOP)?;
    let (asked, done): (Milestone, Milestone) = match pile {
        Pile::Attaches => {
            env.attach(harness, 0..volumes).await?;
            (|life| life.seen, |life| life.attached)
        }
        Pile::Detaches => {
            env.detach(harness, 0..volumes).await?;
            (|life| life.deleting, |life| life.gone)
        }
    };
    tracker.reached(volumes, timeout_for(volumes), asked).await?;
    let released = Instant::now();
    attacher.signal(rustix::process::Signal::CONT)?;
    let finished = tracker
        .reached(volumes, timeout_for(volumes), done)
        .await
        .with_context(|| format!("work off the pile of {pile:?}"))?;
    Ok((released, finished))
}

/// The time of a state change of a VolumeAttachment.
type Milestone = fn(&Life) -> Option<Instant>;
