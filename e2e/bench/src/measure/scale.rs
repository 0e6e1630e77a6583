//! A cluster with many objects of another driver.

use anyhow::Result;

use super::{STOP, detach_one, memory, start_with_an_attach};
use crate::bench_env::{BenchEnv, Needs};
use crate::implementation::Implementation;
use crate::quantity::{Figures, Quantity};
use crate::{Harness, burst_timeout};

/// Starts an attacher with one volume to attach.
pub(super) async fn measure(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
) -> Result<Figures> {
    let needs = Needs {
        volumes: 1,
        ..Needs::default()
    };
    let env = BenchEnv::prepare(harness, name, needs).await?;
    env.create_volume(harness, 0).await?;
    let (attacher, started, tracker) = start_with_an_attach(harness, implementation, &env).await?;
    let work = async {
        // Long enough to list all objects.
        let within = burst_timeout(harness.sizes.many / 10);
        let ready = tracker.reached(1, within, |life| life.attached).await?;
        detach_one(harness, &env, 0).await?;
        Ok(Figures::from([
            (Quantity::Ready, (ready - started).as_secs_f64()),
            (Quantity::StartCpu, attacher.usage().cpu.as_secs_f64()),
            (Quantity::Memory, memory(&attacher)),
        ]))
    };
    let figures = attacher.while_alive(work).await?;
    attacher.stop(STOP).await?;
    env.wipe(harness).await?;
    Ok(figures)
}
