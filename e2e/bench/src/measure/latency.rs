//! Single volumes at a steady rate: the latency without a queue.

use std::time::Duration;

use anyhow::{Context, Result};

use super::{warm_up, with_attacher};
use crate::bench_env::{BenchEnv, Needs};
use crate::implementation::Implementation;
use crate::quantity::{Figures, Quantity};
use crate::statistic::percentile;
use crate::tracker::{Life, Tracker};
use crate::{Harness, timeout_for};

pub(super) async fn measure(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
    api_delay: Option<Duration>,
) -> Result<Figures> {
    let needs = Needs {
        volumes: harness.sizes.samples + 1,
        api_delay,
        any_driver: true,
        ..Needs::default()
    };
    let env = BenchEnv::prepare(harness, name, needs).await?;
    let figures = with_attacher(harness, implementation, &env, async |_| {
        one_by_one(harness, &env).await
    })
    .await;
    env.clear(harness, figures).await
}

async fn one_by_one(harness: &Harness<'_>, env: &BenchEnv) -> Result<Figures> {
    let samples = harness.sizes.samples;
    warm_up(harness, env, samples).await?;
    let tracker = Tracker::follow(harness.cluster.client(), &env.volumes[..samples]);
    let mut tick = tokio::time::interval(Duration::from_secs(1) / harness.sizes.rate);
    for index in 0..samples {
        tick.tick().await;
        env.attach(harness, index..index + 1).await?;
    }
    let within = timeout_for(samples);
    tracker.reached(samples, within, |life| life.attached).await?;
    for index in 0..samples {
        tick.tick().await;
        env.detach(harness, index..index + 1).await?;
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
