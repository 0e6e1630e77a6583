//! A restart of the driver.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{attach_one, detach_one, warm_up};
use crate::Harness;
use crate::bench_env::{BenchEnv, Needs};
use crate::implementation::Implementation;
use crate::quantity::{Figures, Quantity};
use csi_e2e::process::{Process, Spec};

/// Downtime of the driver: at least the duration of an image update.
const AWAY: Duration = Duration::from_secs(5);

pub(super) async fn measure(
    harness: &Harness<'_>,
    implementation: Implementation,
    name: String,
) -> Result<Figures> {
    let needs = Needs {
        volumes: 2,
        durable: true,
        ..Needs::default()
    };
    let mut env = BenchEnv::prepare(harness, name, needs).await?;
    let recovery = async {
        let spec = implementation.spec("attacher", &harness.programs, &env)?;
        tokio::select! {
            biased;
            recovery = recovery(harness, &mut env) => recovery,
            up = supervise(harness, spec) => match up? {},
        }
    }
    .await;
    let recovery = env.clear(harness, recovery).await?;
    Ok(Figures::from([(Quantity::Recovery, recovery.as_secs_f64())]))
}

async fn recovery(harness: &Harness<'_>, env: &mut BenchEnv) -> Result<Duration> {
    warm_up(harness, env, 0).await?;
    env.kill_driver().await?;
    tokio::time::sleep(AWAY).await;
    env.restart_driver(harness).await?;
    let back = Instant::now();
    let attached = attach_one(harness, env, 1).await?;
    detach_one(harness, env, 1).await?;
    Ok(attached - back)
}

/// Restarts the attacher without a pause when it exits, as kubelet does at first.
async fn supervise(harness: &Harness<'_>, spec: Spec) -> Result<Infallible> {
    loop {
        let attacher = Process::spawn(harness.run, spec.clone())?;
        attacher.exited().await;
    }
}
