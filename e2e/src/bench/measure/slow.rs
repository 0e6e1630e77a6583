//! Drivers that take their time.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;

use super::{Pile, STOP, memory, pile_up, warm_up};
use crate::bench::contender::{Contender, Workers};
use crate::bench::ground::{Ground, Needs};
use crate::bench::quantity::{Figures, Quantity};
use crate::bench::tracker::Tracker;
use crate::bench::{Bench, patience};
use crate::driver::journal::{Line, name_of};
use crate::process::Process;
use crate::wait::Progress;

const CALL: Duration = Duration::from_secs(1);
const DETACH: Duration = Duration::from_secs(2);

/// Every driver call takes a second, and there are many to make.
pub(super) async fn all_attached(bench: &Bench<'_>, contender: Contender, name: String) -> Result<Figures> {
    let volumes = bench.sizes.slow;
    let needs = Needs {
        volumes: volumes + 1,
        latency: CALL,
        ..Needs::default()
    };
    let ground = Ground::prepare(bench, name, needs).await?;
    ground.create_volumes(bench).await?;
    let attacher = Process::spawn(bench.run, contender.spec("attacher", &bench.programs, &ground)?)?;
    let work = async {
        warm_up(bench, &ground, volumes).await?;
        let tracker = Tracker::follow(bench.cluster.client(), &ground.volumes[..volumes]);
        let (from, to) = pile_up(bench, &ground, &tracker, &attacher, Pile::Attaches, volumes).await?;
        pile_up(bench, &ground, &tracker, &attacher, Pile::Detaches, volumes).await?;
        Ok(Figures::from([
            (Quantity::AllAttached, (to - from).as_secs_f64()),
            (Quantity::Memory, memory(&attacher)),
        ]))
    };
    let figures = attacher.while_alive(work).await?;
    attacher.stop(STOP).await?;
    ground.clear(bench).await?;
    Ok(figures)
}

/// Many detaches, which take two seconds each, are under way or wait for their turn when one more volume is to
/// be attached.
pub(super) async fn behind(bench: &Bench<'_>, contender: Contender, name: String) -> Result<Figures> {
    let detaches = bench.sizes.slow;
    let needs = Needs {
        volumes: detaches + 1,
        slow_detach: Some(DETACH),
        journal: true,
        ..Needs::default()
    };
    let ground = Ground::prepare(bench, name, needs).await?;
    ground.create_volumes(bench).await?;
    let attacher = Process::spawn(bench.run, contender.spec("attacher", &bench.programs, &ground)?)?;
    let at_once = match contender {
        Contender::Ours(Workers::Number(at_once)) | Contender::Go(Workers::Number(at_once)) => at_once,
        Contender::Ours(Workers::Default) | Contender::Go(Workers::Default) | Contender::Limit(_) => 1,
    };
    let work = async {
        let tracker = Tracker::follow(bench.cluster.client(), &ground.volumes[..detaches]);
        ground.attach(bench, 0..detaches).await?;
        tracker
            .reached(detaches, patience(detaches), |life| life.attached)
            .await
            .context("attach what is to be detached")?;
        ground.detach(bench, 0..detaches).await?;
        under_way(&ground, at_once.min(detaches)).await?;
        let created = Timestamp::now();
        ground.attach(bench, detaches..detaches + 1).await?;
        let started = publish_start(&ground, &ground.handles[detaches]).await?;
        let waited = started.duration_since(created).as_secs_f64() * 1e3;
        Ok(Figures::from([(Quantity::PublishStart, waited)]))
    };
    let figures = attacher.while_alive(work).await?;
    // What is left would take minutes, and says nothing more.
    attacher.kill().await?;
    ground.wipe(bench).await?;
    Ok(figures)
}

/// Waits until so many detaches have begun as the attacher does at once.
async fn under_way(ground: &Ground, count: usize) -> Result<()> {
    let begun = |lines: &[Line]| {
        let begun = lines
            .iter()
            .filter(|line| is_begin_of(line, "ControllerUnpublishVolume").is_some())
            .count();
        Progress::of(begun >= count, || format!("{begun} of {count} began"))
    };
    ground
        .journal()
        .wait_for(patience(count), "slow detaches", begun)
        .await
}

async fn publish_start(ground: &Ground, volume: &str) -> Result<Timestamp> {
    let begun = |lines: &[Line]| {
        let started = lines
            .iter()
            .filter_map(|line| is_begin_of(line, "ControllerPublishVolume"))
            .find(|(handle, _)| *handle == volume);
        started.map_or_else(
            || Progress::Pending(format!("no call for {volume}")),
            |(_, start)| Progress::Reached(start),
        )
    };
    // The Go one gets to it when all detaches before it are through.
    let within = patience(1) + DETACH * u32::try_from(ground.volumes.len()).context("too many volumes")?;
    ground
        .journal()
        .wait_for(within, "the attach behind slow detaches", begun)
        .await
}

/// Volume and moment of a call that began.
fn is_begin_of<'a>(line: &'a Line, wanted: &str) -> Option<(&'a str, Timestamp)> {
    match line {
        Line::Begin {
            method,
            start,
            request,
            ..
        } if name_of(method) == wanted => Some((request.get("volume_id")?.as_str()?, *start)),
        Line::Begin { .. } | Line::End { .. } | Line::Late { .. } | Line::Faults { .. } => None,
    }
}
