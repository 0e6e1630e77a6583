//! Slow drivers.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde_json::json;

use super::{Pile, memory, run_pile, warm_up, with_attacher};
use crate::bench_env::{BenchEnv, Needs};
use crate::implementation::{Implementation, Workers};
use crate::quantity::{Figures, Quantity};
use crate::tracker::Tracker;
use crate::{Harness, timeout_for};
use csi_e2e::driver::fault::{FaultRule, Method};
use csi_e2e::driver::journal::{Line, name_of};
use csi_e2e::wait::Progress;

const CALL: Duration = Duration::from_secs(1);
const DETACH: Duration = Duration::from_secs(2);

/// Many volumes with driver calls of one second.
pub(super) async fn all_attached(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
) -> Result<Figures> {
    let volumes = harness.sizes.slow;
    let needs = Needs {
        volumes: volumes + 1,
        latency: CALL,
        ..Needs::default()
    };
    let env = BenchEnv::prepare(harness, name, needs).await?;
    let figures = with_attacher(harness, implementation, &env, async |attacher| {
        warm_up(harness, &env, volumes).await?;
        let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..volumes]);
        let (from, to) = run_pile(harness, &env, &tracker, attacher, Pile::Attaches, volumes).await?;
        run_pile(harness, &env, &tracker, attacher, Pile::Detaches, volumes).await?;
        Ok(Figures::from([
            (Quantity::AllAttached, (to - from).as_secs_f64()),
            (Quantity::Memory, memory(attacher)),
        ]))
    })
    .await;
    env.clear(harness, figures).await
}

/// Attaches one more volume while many detaches of two seconds each are running or queued.
pub(super) async fn behind(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
) -> Result<Figures> {
    let detaches = harness.sizes.slow;
    let needs = Needs {
        volumes: detaches + 1,
        faults: Some(json!([FaultRule::delay_response(
            "slow",
            Method::ControllerUnpublishVolume,
            DETACH
        )])),
        journal: true,
        ..Needs::default()
    };
    let env = BenchEnv::prepare(harness, name, needs).await?;
    let at_once = match implementation.workers() {
        Some(Workers::Number(at_once)) => at_once,
        Some(Workers::Default) | None => 1,
    };
    let figures = with_attacher(harness, implementation, &env, async |_| {
        let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..detaches]);
        env.attach(harness, 0..detaches).await?;
        tracker
            .reached(detaches, timeout_for(detaches), |life| life.attached)
            .await
            .context("attach the volumes to detach")?;
        env.detach(harness, 0..detaches).await?;
        under_way(&env, at_once.min(detaches)).await?;
        let created = Timestamp::now();
        env.attach(harness, detaches..detaches + 1).await?;
        let started = publish_start(&env, &env.handles[detaches]).await?;
        let waited = started.duration_since(created).as_secs_f64() * 1e3;
        Ok(Figures::from([(Quantity::PublishStart, waited)]))
    })
    .await;
    env.wipe_after(harness, figures).await
}

/// Waits until the attacher has started its maximum number of concurrent detaches.
async fn under_way(env: &BenchEnv, count: usize) -> Result<()> {
    let begun = |lines: &[Line]| {
        let begun = lines
            .iter()
            .filter(|line| is_begin_of(line, "ControllerUnpublishVolume").is_some())
            .count();
        Progress::of(begun >= count, || format!("{begun} of {count} began"))
    };
    env.journal
        .wait_for(timeout_for(count), "slow detaches", begun)
        .await
}

async fn publish_start(env: &BenchEnv, volume: &str) -> Result<Timestamp> {
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
    // The Go attacher starts it after all earlier detaches.
    let within = timeout_for(1) + DETACH * u32::try_from(env.volumes.len()).context("too many volumes")?;
    env.journal
        .wait_for(within, "the attach behind slow detaches", begun)
        .await
}

/// Volume and start time of a call.
fn is_begin_of<'a>(line: &'a Line, wanted: &str) -> Option<(&'a str, Timestamp)> {
    match line {
        Line::Begin {
            method,
            start,
            request,
            ..
        } if name_of(method) == wanted => Some((request.get("volume_id")?.as_str()?, *start)),
        Line::Begin { .. }
        | Line::End { .. }
        | Line::Late { .. }
        | Line::Faults { .. }
        | Line::Lost { .. } => None,
    }
}
