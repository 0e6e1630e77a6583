//! Many volumes at once: speed of attaches and detaches, CPU, memory, requests.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::time::{sleep, timeout};

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

/// Pause between two reads of the metrics that must be equal.
const METRICS_PAUSE: Duration = Duration::from_millis(200);

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
    let before = metrics(harness).await?;
    let cpu = attacher.usage().cpu;
    let attaches = run_pile(harness, env, &tracker, attacher, Pile::Attaches, volumes).await?;
    let between = metrics(harness).await?;
    let detaches = run_pile(harness, env, &tracker, attacher, Pile::Detaches, volumes).await?;
    let cpu = attacher.usage().cpu - cpu;
    let after = metrics(harness).await?;

    let rate = |(from, to): (Instant, Instant)| volumes as f64 / (to - from).as_secs_f64();
    let each = |count: u64| count as f64 / volumes as f64;
    let writes = |from: &Metrics, to: &Metrics| each(attachment_writes(&to.since(from)));
    let reads = READ.map(|resource| after.since(&before).requests("GET", resource, ""));
    Ok(Figures::from([
        (Quantity::AttachRate, rate(attaches)),
        (Quantity::DetachRate, rate(detaches)),
        (Quantity::Cpu, cpu.as_secs_f64() * 1000.0 / volumes as f64),
        (Quantity::Memory, memory(attacher)),
        (Quantity::AttachWrites, writes(&before, &between)),
        (Quantity::DetachWrites, writes(&between, &after)),
        (
            Quantity::VolumeWrites,
            each(volume_writes(&between.since(&before))),
        ),
        (Quantity::Reads, each(reads.iter().sum())),
    ]))
}

fn attachment_writes(metrics: &Metrics) -> u64 {
    metrics.requests("PATCH", "volumeattachments", "")
        + metrics.requests("PATCH", "volumeattachments", "status")
}

fn volume_writes(metrics: &Metrics) -> u64 {
    metrics.requests("PATCH", "persistentvolumes", "")
}

/// The API server's metrics when it has counted all writes, which it does after the watch shows them.
async fn metrics(harness: &Harness<'_>) -> Result<Metrics> {
    let counted = async {
        let mut last = harness.cluster.metrics().await?;
        loop {
            sleep(METRICS_PAUSE).await;
            let metrics = harness.cluster.metrics().await?;
            let writes = |metrics: &Metrics| (attachment_writes(metrics), volume_writes(metrics));
            if writes(&metrics) == writes(&last) {
                return anyhow::Ok(metrics);
            }
            last = metrics;
        }
    };
    let counted = timeout(timeout_for(1), counted).await;
    counted.context("the API server counts more and more writes")?
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
