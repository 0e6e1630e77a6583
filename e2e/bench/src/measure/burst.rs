//! Many volumes at once: speed of attaches and detaches, CPU, memory, requests.

use std::time::Instant;

use anyhow::Result;

use super::{Pile, memory, plain_env, run_pile, warm_up, with_attacher};
use crate::bench_env::BenchEnv;
use crate::implementation::Implementation;
use crate::quantity::{Figures, Quantity};
use crate::tracker::Tracker;
use crate::{Harness, limit, timeout_for};
use csi_e2e::cluster::Metrics;
use csi_e2e::kubeconfig;
use csi_e2e::process::Process;

/// Resources read with GET; lists and watches do not count.
const READ: [&str; 4] = ["volumeattachments", "persistentvolumes", "csinodes", "secrets"];

pub(super) async fn measure(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
    volumes: usize,
) -> Result<Figures> {
    // One more volume, to detect that the attacher is ready.
    let env = plain_env(harness, name, volumes + 1).await?;
    let figures = if let Implementation::Limit(at_once) = implementation {
        bare_loop(harness, &env, volumes, at_once).await
    } else {
        with_attacher(harness, implementation, &env, async |attacher| {
            both_ways(harness, &env, attacher, volumes).await
        })
        .await
    };
    env.clear(harness, figures).await
}

async fn both_ways(
    harness: &Harness<'_>,
    env: &BenchEnv,
    attacher: &Process,
    volumes: usize,
) -> Result<Figures> {
    warm_up(harness, env, volumes).await?;
    let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..volumes]);
    let (cpu, before) = (attacher.usage().cpu, harness.cluster.metrics().await?);
    let attaches = run_pile(harness, env, &tracker, attacher, Pile::Attaches, volumes).await?;
    let between = harness.cluster.metrics().await?;
    let detaches = run_pile(harness, env, &tracker, attacher, Pile::Detaches, volumes).await?;
    let after = harness.cluster.metrics().await?;
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

async fn bare_loop(harness: &Harness<'_>, env: &BenchEnv, volumes: usize, at_once: usize) -> Result<Figures> {
    let client = kubeconfig::client(&env.kubeconfig).await?;
    let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..volumes]);
    let rate = |from: Instant, to: Instant| volumes as f64 / (to - from).as_secs_f64();
    env.attach(harness, 0..volumes).await?;
    let within = timeout_for(volumes);
    tracker.reached(volumes, within, |life| life.seen).await?;
    let from = Instant::now();
    limit::attach(&client, env, volumes, at_once).await?;
    let attached = tracker.reached(volumes, within, |life| life.attached).await?;
    let attach = rate(from, attached);
    env.detach(harness, 0..volumes).await?;
    tracker.reached(volumes, within, |life| life.deleting).await?;
    let from = Instant::now();
    limit::detach(&client, env, volumes, at_once).await?;
    let gone = tracker.reached(volumes, within, |life| life.gone).await?;
    Ok(Figures::from([
        (Quantity::AttachRate, attach),
        (Quantity::DetachRate, rate(from, gone)),
    ]))
}
