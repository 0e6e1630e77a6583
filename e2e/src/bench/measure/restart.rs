//! A driver that goes away and comes back.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{attach_one, detach_one, patience, warm_up};
use crate::bench::Bench;
use crate::bench::contender::Contender;
use crate::bench::ground::{Ground, Needs};
use crate::bench::quantity::{Figures, Quantity};
use crate::process::{Process, Spec};

/// How long the driver stays away: as long as an update of its image takes at least.
const AWAY: Duration = Duration::from_secs(5);

pub(super) async fn measure(bench: &Bench<'_>, contender: Contender, name: String) -> Result<Figures> {
    let needs = Needs {
        volumes: 2,
        durable: true,
        ..Needs::default()
    };
    let mut ground = Ground::prepare(bench, name, needs).await?;
    ground.create_volumes(bench).await?;
    let spec = contender.spec("attacher", &bench.programs, &ground)?;
    let recovery = tokio::select! {
        biased;
        recovery = recovery(bench, &mut ground) => recovery?,
        up = keep_up(bench, spec) => match up? {},
    };
    ground.clear(bench).await?;
    Ok(Figures::from([(Quantity::Recovery, recovery.as_secs_f64())]))
}

async fn recovery(bench: &Bench<'_>, ground: &mut Ground) -> Result<Duration> {
    warm_up(bench, ground, 0).await?;
    ground.kill_driver().await?;
    tokio::time::sleep(AWAY).await;
    ground.restart_driver(bench).await?;
    let back = Instant::now();
    let attached = attach_one(bench, ground, 1, patience(1)).await?;
    detach_one(bench, ground, 1).await?;
    Ok(attached - back)
}

/// Starts the attacher again whenever it ends, as kubelet does at first: without a pause.
async fn keep_up(bench: &Bench<'_>, spec: Spec) -> Result<Infallible> {
    loop {
        let attacher = Process::spawn(bench.run, spec.clone())?;
        attacher.exited().await;
    }
}
