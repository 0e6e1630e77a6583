//! The whole state as one structure, which `/statusz` shows as YAML and as JSON.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::{VERSION, View, health};
use crate::controller::state::{Pending, QueueStats, Stats};
use crate::csi::ConnectionStats;
use crate::kube_api::RequestStats;
use crate::leader_election::{ElectionStatus, Leadership};
use crate::report::{OngoingFailure, seconds, time};
use crate::workqueue::{Class, Key, Lane};

/// The number of work items that are shown of each stage; the rest is counted.
const SHOWN_ITEMS: usize = 50;

/// The whole state. Durations are in seconds. Texts may contain anything; both formats escape control characters.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    version: &'static str,
    time: String,
    up: f64,
    /// What `/readyz` reports as missing.
    not_ready: Vec<String>,
    driver: ConnectionStats,
    leader_election: Option<Election>,
    lists: Vec<ListStatus>,
    api: RequestStats,
    reconcile: Option<ReconcileStatus>,
    lanes: Vec<LaneStatus>,
    running: Vec<WorkStatus>,
    ready: Vec<WorkStatus>,
    waiting: Vec<WorkStatus>,
}

#[derive(Serialize)]
struct Election {
    #[serde(flatten)]
    status: ElectionStatus,
    leads: bool,
    problem: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListStatus {
    resource: &'static str,
    /// Whether the first list is complete.
    complete: bool,
    objects: usize,
    failure: Option<OngoingFailure>,
}

/// Reconcile with ListVolumes.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReconcileStatus {
    last: f64,
    took: f64,
    listed: u64,
    /// Attachments that the driver does not list; they are published again.
    lost: u64,
    /// Volumes published on a node without a VolumeAttachment; they are unpublished.
    leftover: u64,
    error: Option<String>,
    completed: u64,
    failed: u64,
    repaired: u64,
    refused: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct LaneStatus {
    lane: &'static str,
    limit: usize,
    running: usize,
    ready: usize,
    waiting: usize,
    oldest: Option<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkStatus {
    lane: &'static str,
    name: String,
    volume: Option<String>,
    node: Option<String>,
    /// Since the creation or deletion of the object.
    wanted: Option<f64>,
    /// Time in the running or the queued stage.
    elapsed: Option<f64>,
    /// Time until the end of the backoff.
    next: Option<f64>,
    why: Option<&'static str>,
    failures: u32,
    /// Since the first of the consecutive failures.
    failing: Option<f64>,
    error: Option<String>,
}

// === impl Status ===

impl Status {
    pub(super) fn of(view: &View) -> Self {
        let stats = view.stats(SHOWN_ITEMS);
        let now = Instant::now();
        Self {
            version: VERSION,
            time: time(view.now()),
            up: seconds(now - view.started),
            not_ready: health::missing(view),
            driver: view.calls.connection(),
            leader_election: view.election().as_ref().and_then(Election::of),
            lists: stats.as_ref().map(|stats| lists(stats, view)).unwrap_or_default(),
            api: view.requests.state(),
            reconcile: stats.as_ref().and_then(|stats| ReconcileStatus::of(stats, now)),
            lanes: stats
                .iter()
                .flat_map(|stats| &stats.lanes)
                .map(|(lane, stats)| LaneStatus::of(*lane, stats, view))
                .collect(),
            running: works(view, stats.as_ref().map(|stats| &stats.running), now),
            ready: works(view, stats.as_ref().map(|stats| &stats.ready), now),
            waiting: works(view, stats.as_ref().map(|stats| &stats.waiting), now),
        }
    }
}

fn lists(stats: &Stats, view: &View) -> Vec<ListStatus> {
    let (synced, known) = (stats.caches_synced, stats.objects);
    let watches = view.requests.state().watches;
    [
        ("volumeattachments", synced.attachments, known.attachments),
        ("persistentvolumes", synced.volumes, known.volumes),
        ("csinodes", synced.nodes, known.nodes),
    ]
    .map(|(resource, complete, objects)| ListStatus {
        resource,
        complete,
        objects,
        failure: watches.get(resource).cloned(),
    })
    .into()
}

fn works(view: &View, pending: Option<&Vec<Pending>>, now: Instant) -> Vec<WorkStatus> {
    pending
        .into_iter()
        .flatten()
        .map(|pending| WorkStatus::of(pending, view, now))
        .collect()
}

// === impl Election ===

impl Election {
    fn of(leadership: &Leadership) -> Option<Self> {
        Some(Self {
            status: leadership.status()?,
            leads: leadership.check().is_ok(),
            problem: leadership.health().err().map(|why| why.to_string()),
        })
    }
}

// === impl ReconcileStatus ===

impl ReconcileStatus {
    fn of(stats: &Stats, now: Instant) -> Option<Self> {
        let last = stats.last_round.as_ref()?;
        let since = now.into_std().saturating_duration_since(last.round.ended);
        Some(Self {
            last: seconds(since),
            took: seconds(last.round.took),
            listed: last.round.listed,
            lost: last.lost,
            leftover: last.leftover,
            error: last.error.as_ref().map(ToString::to_string),
            completed: stats.reconcile.rounds,
            failed: stats.reconcile.failed_rounds,
            repaired: stats.reconcile.repaired,
            refused: stats.reconcile.refused,
        })
    }
}

// === impl LaneStatus ===

impl LaneStatus {
    fn of(lane: Lane, stats: &QueueStats, view: &View) -> Self {
        Self {
            lane: lane.name(),
            limit: stats.limit,
            running: stats.running,
            ready: stats.ready,
            waiting: stats.waiting,
            oldest: (stats.depth() > 0).then(|| seconds(stats.age(view.now()))),
        }
    }
}

// === impl WorkStatus ===

impl WorkStatus {
    fn of(pending: &Pending, view: &View, now: Instant) -> Self {
        let name = match &pending.key {
            Key::Attachment(name) | Key::Volume(name) => name.to_string(),
            Key::Target(target) => format!("{} on {}", target.volume_id, target.node_id),
        };
        let failures = pending.failures.as_ref();
        let wanted = pending.wanted_since.map(|since| {
            let ago = view.now().duration_since(since);
            seconds(Duration::try_from(ago).unwrap_or_default())
        });
        Self {
            lane: pending.lane.name(),
            name,
            volume: pending.volume.as_ref().map(ToString::to_string),
            node: pending.node.as_ref().map(ToString::to_string),
            wanted,
            elapsed: pending.next.is_none().then_some(seconds(pending.elapsed)),
            next: pending.next.map(seconds),
            why: failures
                .filter(|_| pending.next.is_some())
                .map(|failures| why(failures.last.class)),
            failures: failures.map_or(0, |failures| failures.times),
            failing: failures
                .map(|failures| seconds(now.into_std().saturating_duration_since(failures.since))),
            error: failures.map(|failures| failures.last.message.to_string()),
        }
    }
}

fn why(class: Class) -> &'static str {
    match class {
        Class::Final => "the operation was refused; retry after backoff",
        Class::Refused => {
            "the operation cannot succeed in this state; retry after backoff, or when one of its objects changes"
        }
        Class::Uncertain => "the result is unknown or the error is temporary; retry after backoff",
        Class::Interrupted => "the driver disconnected during the call; retry when it reconnects",
        Class::Disconnected => "the driver is not connected; retry when it reconnects",
    }
}
