//! Many volumes at once: speed both ways, processor time, memory, requests.

use std::time::Instant;

use anyhow::Result;

use super::{Pile, STOP, memory, pile_up, plain_ground, warm_up};
use crate::bench::contender::Contender;
use crate::bench::ground::Ground;
use crate::bench::quantity::{Figures, Quantity};
use crate::bench::tracker::Tracker;
use crate::bench::{Bench, limit, patience};
use crate::cluster::Metrics;
use crate::kubeconfig;
use crate::process::Process;

/// What is read one by one; lists and watches are not.
const READ: [&str; 4] = ["volumeattachments", "persistentvolumes", "csinodes", "secrets"];

pub(super) async fn measure(
    bench: &Bench<'_>,
    contender: Contender,
    name: String,
    volumes: usize,
) -> Result<Figures> {
    // One more, for the attacher to show that it is up.
    let ground = plain_ground(bench, name, volumes + 1).await?;
    if let Contender::Limit(at_once) = contender {
        let figures = bare_loop(bench, &ground, volumes, at_once).await?;
        ground.clear(bench).await?;
        return Ok(figures);
    }
    let spec = contender.spec("attacher", &bench.programs, &ground)?;
    let attacher = Process::spawn(bench.run, spec)?;
    let measured = attacher
        .while_alive(both_ways(bench, &ground, &attacher, volumes))
        .await?;
    attacher.stop(STOP).await?;
    ground.clear(bench).await?;
    Ok(measured)
}

async fn both_ways(
    bench: &Bench<'_>,
    ground: &Ground,
    attacher: &Process,
    volumes: usize,
) -> Result<Figures> {
    warm_up(bench, ground, volumes).await?;
    let tracker = Tracker::follow(bench.cluster.client(), &ground.volumes[..volumes]);
    let (cpu, before) = (attacher.usage().cpu, bench.cluster.metrics().await?);
    let attaches = pile_up(bench, ground, &tracker, attacher, Pile::Attaches, volumes).await?;
    let between = bench.cluster.metrics().await?;
    let detaches = pile_up(bench, ground, &tracker, attacher, Pile::Detaches, volumes).await?;
    let after = bench.cluster.metrics().await?;
    let cpu = attacher.usage().cpu - cpu;

    let rate = |(from, to): (Instant, Instant)| volumes as f64 / (to - from).as_secs_f64();
    let each = |count: u64| count as f64 / volumes as f64;
    let attachment_writes = |from: &Metrics, to: &Metrics| {
        let all = to.since(from);
        each(
            all.requests("PATCH", "volumeattachments", "")
                + all.requests("PATCH", "volumeattachments", "status"),
        )
    };
    let reads = READ.map(|resource| after.since(&before).requests("GET", resource, ""));
    Ok(Figures::from([
        (Quantity::AttachRate, rate(attaches)),
        (Quantity::DetachRate, rate(detaches)),
        (Quantity::Cpu, cpu.as_secs_f64() * 1000.0 / volumes as f64),
        (Quantity::Memory, memory(attacher)),
        (Quantity::AttachWrites, attachment_writes(&before, &between)),
        (Quantity::DetachWrites, attachment_writes(&between, &after)),
        (
            Quantity::VolumeWrites,
            each(between.since(&before).requests("PATCH", "persistentvolumes", "")),
        ),
        (Quantity::Reads, each(reads.iter().sum())),
    ]))
}

async fn bare_loop(bench: &Bench<'_>, ground: &Ground, volumes: usize, at_once: usize) -> Result<Figures> {
    let client = kubeconfig::client(&ground.kubeconfig).await?;
    let tracker = Tracker::follow(bench.cluster.client(), &ground.volumes[..volumes]);
    let rate = |from: Instant, to: Instant| volumes as f64 / (to - from).as_secs_f64();
    ground.attach(bench, 0..volumes).await?;
    let within = patience(volumes);
    tracker.reached(volumes, within, |life| life.seen).await?;
    let from = Instant::now();
    limit::attach(&client, ground, volumes, at_once).await?;
    let attached = tracker.reached(volumes, within, |life| life.attached).await?;
    let attach = rate(from, attached);
    ground.detach(bench, 0..volumes).await?;
    tracker.reached(volumes, within, |life| life.deleting).await?;
    let from = Instant::now();
    limit::detach(&client, ground, volumes, at_once).await?;
    let gone = tracker.reached(volumes, within, |life| life.gone).await?;
    Ok(Figures::from([
        (Quantity::AttachRate, attach),
        (Quantity::DetachRate, rate(from, gone)),
    ]))
}
