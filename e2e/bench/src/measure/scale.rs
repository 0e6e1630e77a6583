//! A cluster with many objects of another driver.

use anyhow::Result;

use super::{detach_one, start_with_an_attach};
use crate::bench_env::{BenchEnv, Needs};
use crate::implementation::Implementation;
use crate::quantity::Figures;
use crate::{Harness, timeout_for};

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
    // Long enough to list all objects.
    let within = timeout_for(harness.sizes.many / 10);
    let figures = start_with_an_attach(harness, implementation, &env, within, async || {
        detach_one(harness, &env, 0).await?;
        Ok(Figures::new())
    })
    .await;
    env.wipe_after(harness, figures).await
}
