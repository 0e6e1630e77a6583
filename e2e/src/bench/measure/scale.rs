//! A cluster full of objects, most of which are somebody else's.

use std::time::Instant;

use anyhow::Result;

use super::{STOP, detach_one, follow, memory};
use crate::bench::contender::Contender;
use crate::bench::ground::{Ground, Needs};
use crate::bench::quantity::{Figures, Quantity};
use crate::bench::{Bench, patience};
use crate::process::Process;

/// Starts an attacher that finds one volume to be attached, and `own` that are.
pub(super) async fn measure(
    bench: &Bench<'_>,
    contender: Contender,
    name: String,
    own: usize,
) -> Result<Figures> {
    let needs = Needs {
        volumes: own + 1,
        ..Needs::default()
    };
    let ground = Ground::prepare(bench, name, needs).await?;
    ground.create_attached(bench, 0..own).await?;
    ground.create_volume(bench, own).await?;
    let tracker = follow(bench, &ground, own);
    ground.attach(bench, own..own + 1).await?;
    tracker.reached(1, patience(1), |life| life.seen).await?;

    let started = Instant::now();
    let attacher = Process::spawn(bench.run, contender.spec("attacher", &bench.programs, &ground)?)?;
    let work = async {
        // Long enough for a list of everything.
        let within = patience(bench.sizes.many / 10);
        let ready = tracker.reached(1, within, |life| life.attached).await?;
        detach_one(bench, &ground, own).await?;
        Ok(Figures::from([
            (Quantity::Ready, (ready - started).as_secs_f64()),
            (Quantity::StartCpu, attacher.usage().cpu.as_secs_f64()),
            (Quantity::Memory, memory(&attacher)),
        ]))
    };
    let figures = attacher.while_alive(work).await?;
    attacher.stop(STOP).await?;
    // Ten thousand detaches are what the burst is for.
    ground.wipe(bench).await?;
    Ok(figures)
}
