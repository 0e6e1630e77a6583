//! Runs a schedule on the embedded attach/detach controller, in simulated time.

use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use embedded_cluster::attach_detach::{AttachDetachOptions, ForceDetach};
use embedded_cluster::cluster::{ClusterOptions, EmbeddedCluster};
use embedded_cluster::injected_bug::InjectedBug;
use tokio::time::sleep;

use crate::actor::Actor;
use crate::observer::{Observed, Observer};
use crate::schedule::{Generator, Schedule, Step};

/// Simulated time after each burst: longer than the longest backoff of the controller.
const SETTLED: Duration = Duration::from_secs(130);
/// A period that never ends.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Periods of the controller's loops, in both clusters.
pub(crate) const LOOP_PERIOD: Duration = Duration::from_secs(2);

/// How long a volume may stay mounted on a node that is not ready, in both clusters.
pub(crate) const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(5);

/// The bursts of a schedule, each with the state after it.
#[derive(Debug)]
pub(crate) struct Recording {
    pub schedule: Schedule,
    pub bursts: Vec<(Vec<Step>, Observed)>,
}

// === impl Recording ===

impl Recording {
    /// Selects and executes the steps of `seed`.
    ///
    /// # Errors
    /// The embedded API server refused a request.
    pub(crate) fn new(seed: u64, bug: Option<InjectedBug>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .context("start a runtime")?;
        runtime.block_on(record(Schedule::new(seed), bug))
    }
}

async fn record(schedule: Schedule, bug: Option<InjectedBug>) -> Result<Recording> {
    let cluster = EmbeddedCluster::start(ClusterOptions {
        seed: schedule.seed,
        attach_detach: AttachDetachOptions {
            reconcile_sync_period: LOOP_PERIOD,
            populator_loop_sleep_period: LOOP_PERIOD,
            populator_list_pods_retry_duration: LOOP_PERIOD,
            // In real time, no step is delayed until an attach times out.
            csi_timeout: FOREVER,
            force_detach: ForceDetach {
                max_wait_for_unmount: MAX_WAIT_FOR_UNMOUNT,
                ..ForceDetach::default()
            },
            injected_bug: bug,
            ..AttachDetachOptions::default()
        },
        // No kubelet renews the leases of the nodes.
        node_monitor_grace_period: FOREVER,
        ..ClusterOptions::default()
    });
    let actor = Actor::new(cluster.client());
    let observer = Observer::start(&cluster.client());
    actor.register_driver().await?;
    actor.prepare(&schedule).await?;
    sleep(SETTLED).await;
    let mut generator = Generator::new(&schedule);
    let mut bursts = Vec::new();
    let mut heartbeats = 0;
    let mut observed = observer.observed(&schedule.prefix);
    while let Some(burst) = generator.next(&observed) {
        let acted = actor.act(&burst).await;
        acted.map_err(|error| anyhow!("seed {}, embedded cluster: {error:#}", schedule.seed))?;
        sleep(SETTLED).await;
        // After a failed attach, a volume may count as mounted until the next update of the node's status.
        heartbeats += 1;
        actor
            .heartbeat(&schedule, generator.not_ready(), heartbeats)
            .await?;
        sleep(SETTLED).await;
        observed = observer.observed(&schedule.prefix);
        bursts.push((burst, observed.clone()));
    }
    Ok(Recording { schedule, bursts })
}
