//! Drivers that refuse calls: locked nodes, a rate limit, a hanging node, an outage, a full node.

use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};

use super::{Pile, run_pile, warm_up, with_attacher};
use crate::bench_env::{BenchEnv, Needs};
use crate::implementation::Implementation;
use crate::quantity::{Figures, Quantity};
use crate::row::Row;
use crate::tracker::Tracker;
use crate::{Harness, timeout_for};

const BOTH: &str = "Controller*ublishVolume";

/// Attaches, then detaches, at nodes that a call locks for a part of its time.
pub(super) async fn locked(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
    row: Row,
) -> Result<Figures> {
    let faults = json!({
        "backend-faults": [{"id": "lock", "type": "node-lock", "time": "1s"}],
        "rules": [{"id": "slow", "match": {"method": BOTH}, "phase": "after", "action": {"delay": "1500ms"}}],
    });
    let (env, volumes) = prepare(harness, name, row, faults).await?;
    let figures = with_attacher(harness, implementation, &env, async |attacher| {
        warm_up(harness, &env, volumes).await?;
        let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..volumes]);
        let (from, attached) = run_pile(harness, &env, &tracker, attacher, Pile::Attaches, volumes).await?;
        let attaches = attached - from;
        let (from, detached) = run_pile(harness, &env, &tracker, attacher, Pile::Detaches, volumes).await?;
        Ok(Figures::from([
            (Quantity::AllAttached, attaches.as_secs_f64()),
            (Quantity::AllDetached, (detached - from).as_secs_f64()),
            (Quantity::Refusals, refusals(&env)?),
        ]))
    })
    .await;
    env.clear(harness, figures).await
}

/// Attaches at a driver with a token bucket.
pub(super) async fn throttled(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
) -> Result<Figures> {
    let limit = json!({"id": "rate", "type": "rate-limit", "method": BOTH, "per-second": 20, "burst": 20});
    let faults = json!({"backend-faults": [limit]});
    let (env, volumes) = prepare(harness, name, Row::Throttled, faults).await?;
    let figures = with_attacher(harness, implementation, &env, async |attacher| {
        warm_up(harness, &env, volumes).await?;
        let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..volumes]);
        let (from, attached) = run_pile(harness, &env, &tracker, attacher, Pile::Attaches, volumes).await?;
        Ok(Figures::from([
            (Quantity::AllAttached, (attached - from).as_secs_f64()),
            (Quantity::Refusals, refusals(&env)?),
        ]))
    })
    .await;
    env.wipe_after(harness, figures).await
}

/// Attaches to ten nodes without and with a node whose calls hang until the attacher cancels them.
pub(super) async fn sick_node(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
) -> Result<Figures> {
    let slow =
        json!({"id": "slow", "match": {"method": BOTH}, "phase": "after", "action": {"delay": "500ms"}});
    let hang = json!({"id": "hang", "match": {"method": BOTH, "node": "node-0"}, "action": {"hang": "client-cancel"}});
    let (env, volumes) = prepare(harness, name, Row::SickNode, json!([slow])).await?;
    let volumes = volumes / 2;
    let figures = with_attacher(harness, implementation, &env, async |attacher| {
        warm_up(harness, &env, 2 * volumes).await?;
        let mut times = Vec::new();
        for volumes in [0..volumes, volumes..2 * volumes] {
            attacher.signal(rustix::process::Signal::STOP)?;
            let healthy: Vec<_> = volumes
                .clone()
                .filter(|index| !env.node_of(*index).ends_with("node-0"))
                .map(|index| env.volumes[index].clone())
                .collect();
            let tracker = Tracker::follow(harness.cluster.client(), &healthy);
            env.attach(harness, volumes).await?;
            let within = timeout_for(healthy.len());
            tracker.reached(healthy.len(), within, |life| life.seen).await?;
            let from = Instant::now();
            attacher.signal(rustix::process::Signal::CONT)?;
            let attached = tracker
                .reached(healthy.len(), within, |life| life.attached)
                .await?;
            times.push((attached - from).as_secs_f64());
            env.set_faults(&json!([hang, slow])).await?;
        }
        Ok(Figures::from([
            (Quantity::AllAttached, times[1]),
            (Quantity::Slowdown, times[1] / times[0]),
        ]))
    })
    .await;
    env.wipe_after(harness, figures).await
}

/// Replaces the three volumes of a node that takes three, with slow detaches.
pub(super) async fn node_full(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
) -> Result<Figures> {
    let faults = json!({
        "backend-faults": [{"id": "limit", "type": "node-limit", "limit": 3}],
        "rules": [{"id": "slow", "match": {"method": "ControllerUnpublishVolume"}, "action": {"delay": "20s"}}],
    });
    let (env, volumes) = prepare(harness, name, Row::NodeFull, faults).await?;
    let (old, new) = (0..volumes / 2, volumes / 2..volumes);
    let figures = with_attacher(harness, implementation, &env, async |_| {
        let before = Tracker::follow(harness.cluster.client(), &env.volumes[old.clone()]);
        env.attach(harness, old.clone()).await?;
        before
            .reached(old.len(), timeout_for(old.len()), |life| life.attached)
            .await?;
        let after = Tracker::follow(harness.cluster.client(), &env.volumes[new.clone()]);
        let from = Instant::now();
        env.detach(harness, old.clone()).await?;
        env.attach(harness, new.clone()).await?;
        let attached = after
            .reached(new.len(), timeout_for(new.len()), |life| life.attached)
            .await?;
        Ok(Figures::from([
            (Quantity::AllAttached, (attached - from).as_secs_f64()),
            (Quantity::Refusals, refusals(&env)?),
            (Quantity::Exhausted, after.exhausted() as f64),
        ]))
    })
    .await;
    env.wipe_after(harness, figures).await
}

/// Attaches that fail during an outage of the driver's backend, from its end on.
pub(super) async fn outage(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
    row: Row,
) -> Result<Figures> {
    let down = json!([{"id": "down", "match": {"method": BOTH}, "action": {"code": "UNAVAILABLE"}}]);
    let (env, volumes) = prepare(harness, name, row, json!([])).await?;
    let figures = with_attacher(harness, implementation, &env, async |_| {
        warm_up(harness, &env, volumes).await?;
        env.set_faults(&down).await?;
        let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..volumes]);
        env.attach(harness, 0..volumes).await?;
        tokio::time::sleep(harness.sizes.outage).await;
        env.set_faults(&json!([])).await?;
        let back = Instant::now();
        let within = timeout_for(volumes);
        let attached = tracker.reached(volumes, within, |life| life.attached).await?;
        Ok(Figures::from([
            (Quantity::AllAttached, (attached - back).as_secs_f64()),
            (Quantity::Refusals, refusals(&env)?),
        ]))
    })
    .await;
    env.wipe_after(harness, figures).await
}

/// The environment, with one more volume for the warm-up, and the number of the others.
async fn prepare(harness: &Harness<'_>, name: String, row: Row, faults: Value) -> Result<(BenchEnv, usize)> {
    let (volumes, nodes) = row.refusing_size(&harness.sizes);
    let needs = Needs {
        volumes: volumes + 1,
        nodes,
        faults: Some(faults),
        journal: true,
        ..Needs::default()
    };
    Ok((BenchEnv::prepare(harness, name, needs).await?, volumes))
}

/// Failed attaches and detaches for each successful one.
fn refusals(env: &BenchEnv) -> Result<f64> {
    let calls = env.calls()?;
    let ended = calls
        .iter()
        .filter(|call| call.method.ends_with("ublishVolume") && call.end.is_some());
    let (done, refused): (Vec<_>, Vec<_>) = ended.partition(|call| call.succeeded());
    Ok(refused.len() as f64 / done.len().max(1) as f64)
}
