//! One attacher, measured.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, ResourceExt};
use rustix::process::Signal;

use super::ground::Ground;
use super::table::{Measured, percentile};
use super::tracker::{Life, Tracker};
use super::{Plan, Programs, limit, patience};
use crate::cluster::Cluster;
use crate::process::{Process, Run, Spec};

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// A bare loop with this many volumes in flight.
    Limit(usize),
    /// Ours, with this many attaches and detaches at once.
    Ours(usize),
    /// The Go one without client-side limits, with this many workers.
    Go(usize),
}

const STOP: Duration = Duration::from_secs(30);

// === impl Contender ===

impl Contender {
    /// Whether it needs the Go attacher.
    pub fn is_go(self) -> bool {
        matches!(self, Self::Go(_))
    }

    fn spec(self, programs: &Programs, ground: &Ground) -> Result<Option<Spec>> {
        let (program, workers) = match self {
            Self::Limit(_) => return Ok(None),
            Self::Ours(workers) => (&programs.ours, workers),
            Self::Go(workers) => (
                programs
                    .go
                    .as_ref()
                    .context("the Go attacher must have been built")?,
                workers,
            ),
        };
        let spec = Spec::new("attacher", program).dir(&ground.dir).args([
            format!("--kubeconfig={}", ground.kubeconfig.display()),
            format!("--csi-address={}", ground.socket.display()),
            format!("--worker-threads={workers}"),
        ]);
        Ok(Some(match self {
            Self::Go(_) => spec.args(["--kube-api-qps=10000", "--kube-api-burst=20000"]),
            Self::Limit(_) | Self::Ours(_) => spec,
        }))
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limit(at_once) => write!(f, "limit-{at_once}"),
            Self::Ours(workers) => write!(f, "ours-{workers}"),
            Self::Go(workers) => write!(f, "go-{workers}"),
        }
    }
}

impl FromStr for Contender {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let wrong = || format!("{name:?} is none of limit-N, ours-N, go-N");
        let (who, number) = name.split_once('-').ok_or_else(wrong)?;
        let number = number
            .parse()
            .ok()
            .filter(|number| *number > 0)
            .ok_or_else(wrong)?;
        match who {
            "limit" => Ok(Self::Limit(number)),
            "ours" => Ok(Self::Ours(number)),
            "go" => Ok(Self::Go(number)),
            _ => Err(wrong()),
        }
    }
}

/// Measures one contender on its ground.
pub(super) async fn measure(
    run: &Arc<Run>,
    cluster: &Cluster,
    programs: &Programs,
    plan: &Plan,
    contender: Contender,
    ground: &Ground,
) -> Result<Measured> {
    let tracker = Tracker::start(cluster.client(), format!("{}-", ground.name));
    let Some(spec) = contender.spec(programs, ground)? else {
        let Contender::Limit(at_once) = contender else {
            unreachable!("only the limit has no program")
        };
        return bare_loop(cluster, plan, ground, at_once).await;
    };
    let attacher = Process::spawn(run, spec)?;
    let measured = attacher
        .while_alive(async {
            warm_up(cluster, plan, ground, &tracker).await?;
            let mut measured = burst(cluster, plan, ground, &tracker, &attacher).await?;
            steady(cluster, plan, ground, &tracker, &mut measured).await?;
            measured.memory = Some(attacher.usage().peak_rss as f64 / 1e6);
            Ok(measured)
        })
        .await?;
    attacher.stop(STOP).await?;
    Ok(measured)
}

/// One attach and detach: the attacher is up, its caches are full, its connections open.
async fn warm_up(cluster: &Cluster, plan: &Plan, ground: &Ground, tracker: &Tracker) -> Result<()> {
    let last = plan.volumes + plan.samples;
    ground.attach(cluster, last..last + 1).await?;
    tracker
        .reached(1, patience(1), |life| life.attached)
        .await
        .context("attach the first volume")?;
    ground.detach(cluster, last..last + 1).await?;
    tracker
        .reached(1, patience(1), |life| life.gone)
        .await
        .context("detach the first volume")?;
    Ok(())
}

/// All at once: the attacher is stopped while the work piles up, so that only its own speed is measured.
async fn burst(
    cluster: &Cluster,
    plan: &Plan,
    ground: &Ground,
    tracker: &Tracker,
    attacher: &Process,
) -> Result<Measured> {
    let volumes = plan.volumes;
    let (cpu, writes) = (attacher.usage().cpu, cluster.metrics().await?);
    let within = patience(volumes);

    attacher.signal(Signal::STOP)?;
    ground.attach(cluster, 0..volumes).await?;
    tracker.reached(volumes + 1, within, |life| life.seen).await?;
    let started = Instant::now();
    attacher.signal(Signal::CONT)?;
    let attached = tracker
        .reached(volumes + 1, within, |life| life.attached)
        .await
        .context("attach the burst")?;
    let between = cluster.metrics().await?;

    attacher.signal(Signal::STOP)?;
    ground.detach(cluster, 0..volumes).await?;
    tracker.reached(volumes + 1, within, |life| life.deleting).await?;
    let resumed = Instant::now();
    attacher.signal(Signal::CONT)?;
    let gone = tracker
        .reached(volumes + 1, within, |life| life.gone)
        .await
        .context("detach the burst")?;
    let after = cluster.metrics().await?;

    let each = |count: u64| count as f64 / volumes as f64;
    let attachment_writes = |from: &crate::cluster::Metrics, to: &crate::cluster::Metrics| {
        let all = to.since(from);
        each(
            all.requests("PATCH", "volumeattachments", "")
                + all.requests("PATCH", "volumeattachments", "status"),
        )
    };
    Ok(Measured {
        attach_rate: volumes as f64 / attached.duration_since(started).as_secs_f64(),
        detach_rate: volumes as f64 / gone.duration_since(resumed).as_secs_f64(),
        cpu: Some((attacher.usage().cpu - cpu).as_secs_f64()),
        writes_per_attach: attachment_writes(&writes, &between),
        writes_per_detach: attachment_writes(&between, &after),
        writes_per_volume: each(between.since(&writes).requests("PATCH", "persistentvolumes", "")),
        ..Measured::default()
    })
}

/// One after the other, at a steady rate: how long one attach takes when there is no queue.
async fn steady(
    cluster: &Cluster,
    plan: &Plan,
    ground: &Ground,
    tracker: &Tracker,
    measured: &mut Measured,
) -> Result<()> {
    if plan.samples == 0 {
        return Ok(());
    }
    let api: Api<VolumeAttachment> = Api::all(cluster.client());
    let all = plan.volumes..plan.volumes + plan.samples;
    let fresh = Tracker::start(cluster.client(), format!("{}-", ground.name));
    let mut tick = tokio::time::interval(Duration::from_secs(1) / plan.rate);
    for index in all.clone() {
        tick.tick().await;
        api.create(&PostParams::default(), &ground.attachment(index)?)
            .await?;
    }
    let within = patience(plan.samples);
    fresh.reached(plan.samples, within, |life| life.attached).await?;
    for index in all {
        tick.tick().await;
        let name = ground.attachment(index)?.name_any();
        api.delete(&name, &DeleteParams::default()).await?;
    }
    tracker
        .reached(plan.volumes + plan.samples + 1, within, |life| life.gone)
        .await?;
    fresh.reached(plan.samples, within, |life| life.gone).await?;
    let span = |from: fn(&Life) -> Option<Instant>, to: fn(&Life) -> Option<Instant>| fresh.spans(from, to);
    let mut attaches = span(|life| life.seen, |life| life.attached);
    let mut detaches = span(|life| life.deleting, |life| life.gone);
    measured.attach_p50 = percentile(&mut attaches, 50);
    measured.attach_p99 = percentile(&mut attaches, 99);
    measured.detach_p50 = percentile(&mut detaches, 50);
    measured.detach_p99 = percentile(&mut detaches, 99);
    Ok(())
}

async fn bare_loop(cluster: &Cluster, plan: &Plan, ground: &Ground, at_once: usize) -> Result<Measured> {
    let volumes = plan.volumes;
    ground.attach(cluster, 0..volumes).await?;
    let attach = limit::attach(&cluster.client(), ground, volumes, at_once).await?;
    ground.detach(cluster, 0..volumes).await?;
    let detach = limit::detach(&cluster.client(), ground, volumes, at_once).await?;
    Ok(Measured {
        attach_rate: volumes as f64 / attach,
        detach_rate: volumes as f64 / detach,
        writes_per_attach: 2.0,
        writes_per_detach: 1.0,
        writes_per_volume: 1.0,
        ..Measured::default()
    })
}
