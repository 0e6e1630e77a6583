//! A cluster with many objects, most of them of another driver.

use std::time::Instant;

use anyhow::Result;

use super::{STOP, detach_one, follow, memory};
use crate::bench_env::{BenchEnv, Needs};
use crate::implementation::Implementation;
use crate::quantity::{Figures, Quantity};
use crate::{Harness, burst_timeout};
use csi_e2e::process::Process;

/// Starts an attacher with one volume to attach and `own` attached ones.
pub(super) async fn measure(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
    own: usize,
) -> Result<Figures> {
    let needs = Needs {
        volumes: own + 1,
        ..Needs::default()
    };
    let env = BenchEnv::prepare(harness, name, needs).await?;
    env.create_attached(harness, 0..own).await?;
    env.create_volume(harness, own).await?;
    let tracker = follow(harness, &env, own);
    env.attach(harness, own..own + 1).await?;
    tracker.reached(1, burst_timeout(1), |life| life.seen).await?;

    let started = Instant::now();
    let attacher = Process::spawn(
        harness.run,
        implementation.spec("attacher", &harness.programs, &env)?,
    )?;
    let work = async {
        // Long enough to list all objects.
        let within = burst_timeout(harness.sizes.many / 10);
        let ready = tracker.reached(1, within, |life| life.attached).await?;
        detach_one(harness, &env, own).await?;
        Ok(Figures::from([
            (Quantity::Ready, (ready - started).as_secs_f64()),
            (Quantity::StartCpu, attacher.usage().cpu.as_secs_f64()),
            (Quantity::Memory, memory(&attacher)),
        ]))
    };
    let figures = attacher.while_alive(work).await?;
    attacher.stop(STOP).await?;
    // Ten thousand detaches are measured by the burst.
    env.wipe(harness).await?;
    Ok(figures)
}
