//! Attachers measured side by side: each in turn on one control plane, with the same objects and the same
//! driver, so that ratios hold whatever the machine is doing.
//!
//! Beside them stands the limit: a bare loop that sends the writes of [`limit`] and does nothing else.
//! kube-controller-manager does not run; VolumeAttachments are made by hand.

mod array;
mod contender;
mod ground;
pub mod limit;
pub mod table;
mod tracker;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

pub use contender::Contender;
pub use table::Row;

use crate::cluster::{Backend, Cluster};
use crate::control_plane::{Component, Options};
use crate::process::Run;
use crate::toolchain::{Peer, Toolchain};
use ground::Ground;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// VolumeAttachments in the burst.
    pub volumes: usize,
    /// VolumeAttachments created one by one for the latencies.
    pub samples: usize,
    /// How many of those a second.
    pub rate: u32,
    /// How often everything is measured; the table shows medians.
    pub rounds: usize,
    /// Who is measured, in this order.
    pub contenders: Vec<Contender>,
    /// A driver that runs already, instead of the mock driver.
    pub csi_address: Option<PathBuf>,
}

/// Programs that the contenders are made of.
struct Programs {
    ours: PathBuf,
    go: Option<PathBuf>,
    driver: PathBuf,
}

/// Measures everything in `plan`.
pub async fn run(run: &Arc<Run>, toolchain: &Toolchain, plan: &Plan) -> Result<Vec<Row>> {
    let needs_go = plan.contenders.iter().any(|contender| contender.is_go());
    let programs = Programs {
        ours: toolchain.csi_attacher().await.context("build our attacher")?,
        go: match needs_go {
            true => Some(
                toolchain
                    .peer(Peer::ExternalAttacher)
                    .await
                    .context("build the Go attacher")?,
            ),
            false => None,
        },
        driver: toolchain
            .csi_mock_driver()
            .await
            .context("build the mock driver")?,
    };
    let cluster = Cluster::start(run, toolchain, Backend::ControlPlane(Options::default())).await?;
    let plane = cluster
        .control_plane()
        .context("the bench must have started its control plane")?;
    // While somebody makes its default service account.
    cluster.create_namespace(NAMESPACE).await?;
    // It would take part: delete attachments that no pod wants, protect volumes, and use the processor.
    plane.kill(Component::ControllerManager).await?;
    let mut rounds = Vec::new();
    for round in 0..plan.rounds {
        for contender in &plan.contenders {
            tracing::info!(round, %contender, "measuring");
            let ground = Ground::prepare(run, &cluster, &programs, plan, *contender, round).await?;
            let measured = contender::measure(run, &cluster, &programs, plan, *contender, &ground).await;
            ground.clear(&cluster).await?;
            rounds.push((
                *contender,
                measured.with_context(|| format!("measure {contender}"))?,
            ));
        }
    }
    cluster.stop().await?;
    Ok(table::medians(&plan.contenders, &rounds))
}

/// Where the contenders' service accounts live.
const NAMESPACE: &str = "bench";

/// How long a burst may take before the bench gives up: long enough for 10 volumes a second.
fn patience(volumes: usize) -> Duration {
    Duration::from_secs(60 + volumes as u64 / 10)
}
