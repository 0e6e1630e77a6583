//! One volume after the other at a steady rate: how long one takes when there is no queue.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{STOP, warm_up};
use crate::bench::contender::Contender;
use crate::bench::ground::{Ground, Needs};
use crate::bench::quantity::{Figures, Quantity};
use crate::bench::statistic::percentile;
use crate::bench::tracker::{Life, Tracker};
use crate::bench::{Bench, patience};
use crate::process::Process;

pub(super) async fn measure(
    bench: &Bench<'_>,
    contender: Contender,
    name: String,
    api_delay: Option<Duration>,
) -> Result<Figures> {
    let needs = Needs {
        volumes: bench.sizes.samples + 1,
        api_delay,
        any_driver: true,
        ..Needs::default()
    };
    let ground = Ground::prepare(bench, name, needs).await?;
    ground.create_volumes(bench).await?;
    let spec = contender.spec("attacher", &bench.programs, &ground)?;
    let attacher = Process::spawn(bench.run, spec)?;
    let figures = attacher.while_alive(one_by_one(bench, &ground)).await?;
    attacher.stop(STOP).await?;
    ground.clear(bench).await?;
    Ok(figures)
}

async fn one_by_one(bench: &Bench<'_>, ground: &Ground) -> Result<Figures> {
    let samples = bench.sizes.samples;
    warm_up(bench, ground, samples).await?;
    let tracker = Tracker::follow(bench.cluster.client(), &ground.volumes[..samples]);
    let mut tick = tokio::time::interval(Duration::from_secs(1) / bench.sizes.rate);
    for index in 0..samples {
        tick.tick().await;
        ground.attach(bench, index..index + 1).await?;
    }
    let within = patience(samples);
    tracker.reached(samples, within, |life| life.attached).await?;
    for index in 0..samples {
        tick.tick().await;
        ground.detach(bench, index..index + 1).await?;
    }
    tracker.reached(samples, within, |life| life.gone).await?;

    let mut attaches = tracker.spans(|life: &Life| life.seen, |life: &Life| life.attached);
    let mut detaches = tracker.spans(|life: &Life| life.deleting, |life: &Life| life.gone);
    let mut figures = Figures::new();
    let mut note = |quantity, samples: &mut [Duration], percent| {
        figures.insert(
            quantity,
            percentile(samples, percent).context("there must be samples")?,
        );
        anyhow::Ok(())
    };
    note(Quantity::AttachP50, &mut attaches, 50)?;
    note(Quantity::AttachP99, &mut attaches, 99)?;
    note(Quantity::DetachP50, &mut detaches, 50)?;
    note(Quantity::DetachP99, &mut detaches, 99)?;
    Ok(figures)
}
