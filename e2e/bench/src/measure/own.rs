//! An attacher that starts with many attached volumes of its driver.

use anyhow::{Context, Result};

use super::{detach_one, start_with_an_attach};
use crate::implementation::Implementation;
use crate::own_load::SAMPLES;
use crate::quantity::{Figures, Quantity};
use crate::statistic::percentile;
use crate::tracker::{Life, Tracker};
use crate::{Harness, timeout_for};

/// Starts an attacher with `own` attached volumes and one to attach, then attaches some more one by one.
pub(super) async fn measure(
    harness: &Harness<'_>,
    implementation: Implementation,
    own: usize,
) -> Result<Figures> {
    let mut load = harness.own_load.lock().await;
    let env = load.grow_to(harness, own).await?;
    // Long enough to list all objects.
    let within = timeout_for(own);
    start_with_an_attach(harness, implementation, env, within, async || {
        let others = Tracker::follow(harness.cluster.client(), &env.volumes[1..=SAMPLES]);
        for sample in 1..=SAMPLES {
            env.attach(harness, sample..sample + 1).await?;
            others
                .reached(sample, timeout_for(1), |life| life.attached)
                .await?;
        }
        let mut latencies = others.spans(|life: &Life| life.seen, |life: &Life| life.attached);
        for sample in 0..=SAMPLES {
            detach_one(harness, env, sample).await?;
        }
        let latency = percentile(&mut latencies, 50).context("there must be samples")?;
        Ok(Figures::from([(Quantity::AttachP50, latency)]))
    })
    .await
}
