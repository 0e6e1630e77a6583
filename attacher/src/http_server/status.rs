//! The whole state as one structure, which `/statusz` shows as YAML and as JSON.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::{VERSION, View, health};
use crate::controller::state::{Pending, QueueStats, Stats};
use crate::kube_api::{FailureStats, OngoingFailure};
use crate::leader_election::Leadership;
use crate::report::time;
use crate::workqueue::{Class, Key, Lane};

/// The number of work items that are shown of each stage; the rest is counted.
const SHOWN_ITEMS: usize = 50;

/// The whole state. Durations are in seconds. Texts may contain anything; both formats escape control characters.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    version: &'static str,
    time: String,
    up: f64,
    /// What `/readyz` reports as missing.
    not_ready: Vec<String>,
    driver: DriverStatus,
    leader_election: Option<ElectionStatus>,
    lists: Vec<ListStatus>,
    api: ApiStatus,
    reconcile: Option<ReconcileStatus>,
    lanes: Vec<LaneStatus>,
    running: Vec<WorkStatus>,
    ready: Vec<WorkStatus>,
    waiting: Vec<WorkStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DriverStatus {
    name: Option<String>,
    connected: bool,
    since: Option<f64>,
    reconnects: u64,
    last_failure: Option<String>,
    capabilities: Vec<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ElectionStatus {
    lease: String,
    identity: String,
    leads: bool,
    /// The holder's identity; empty if the lease is free, none if it has not been read yet.
    holder: Option<String>,
    renewed: Option<f64>,
    failure: Option<FailureStatus>,
    problem: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListStatus {
    resource: &'static str,
    /// Whether the first list is complete.
    complete: bool,
    objects: usize,
    failure: Option<FailureStatus>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ApiStatus {
    in_flight: usize,
    last_answer: Option<f64>,
    /// Since the last 2xx response.
    last_success: Option<f64>,
    refused: FailureCount,
    unanswered: FailureCount,
}

/// Failures since the start.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureCount {
    count: u64,
    last: Option<f64>,
    error: Option<String>,
}

/// Consecutive failures.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FailureStatus {
    times: u32,
    /// Since the first of the consecutive failures.
    failing: f64,
    last: f64,
    error: String,
}

/// Reconcile with ListVolumes.
#[derive(Clone, Debug, PartialEq, Serialize)]
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

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct LaneStatus {
    lane: &'static str,
    limit: usize,
    running: usize,
    ready: usize,
    waiting: usize,
    oldest: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
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
            driver: DriverStatus::of(view, now),
            leader_election: view
                .election()
                .and_then(|election| ElectionStatus::of(&election, now)),
            lists: stats
                .as_ref()
                .map(|stats| lists(stats, view, now))
                .unwrap_or_default(),
            api: ApiStatus::of(view, now),
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

fn lists(stats: &Stats, view: &View, now: Instant) -> Vec<ListStatus> {
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
        failure: watches
            .get(resource)
            .map(|failure| FailureStatus::of(failure, now)),
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

// === impl ElectionStatus ===

impl ElectionStatus {
    fn of(leadership: &Leadership, now: Instant) -> Option<Self> {
        let status = leadership.status()?;
        Some(Self {
            lease: status.lease,
            identity: status.identity,
            leads: leadership.check().is_ok(),
            holder: status.holder,
            renewed: status.renewed.map(|renewed| seconds(now - renewed)),
            failure: status
                .ongoing_failure
                .map(|failure| FailureStatus::of(&failure, now)),
            problem: leadership.health().err().map(|why| why.to_string()),
        })
    }
}

// === impl DriverStatus ===

impl DriverStatus {
    fn of(view: &View, now: Instant) -> Self {
        let connection = view.calls.connection();
        let capabilities = connection
            .capabilities
            .map(|capabilities| capabilities.names().collect());
        Self {
            name: connection.driver.map(|name| name.to_string()),
            connected: connection.up,
            since: connection.since.map(|since| seconds(now - since)),
            reconnects: connection.opened.saturating_sub(1),
            last_failure: connection.last_failure,
            capabilities: capabilities.unwrap_or_default(),
        }
    }
}

// === impl ApiStatus ===

impl ApiStatus {
    fn of(view: &View, now: Instant) -> Self {
        let state = view.requests.state();
        let ago = |then: Instant| seconds(now - then);
        Self {
            in_flight: state.in_flight,
            last_answer: state.answered.map(ago),
            last_success: state.granted.map(ago),
            refused: FailureCount::of(&state.refused, now),
            unanswered: FailureCount::of(&state.unanswered, now),
        }
    }
}

// === impl FailureCount ===

impl FailureCount {
    fn of(failures: &FailureStats, now: Instant) -> Self {
        let last = failures.last.as_ref();
        Self {
            count: failures.count,
            last: last.map(|(then, _)| seconds(now - *then)),
            error: last.map(|(_, why)| why.to_string()),
        }
    }
}

// === impl FailureStatus ===

impl FailureStatus {
    fn of(ongoing_failure: &OngoingFailure, now: Instant) -> Self {
        Self {
            times: ongoing_failure.times,
            failing: seconds(now - ongoing_failure.since),
            last: seconds(now - ongoing_failure.last),
            error: ongoing_failure.why.to_string(),
        }
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

/// Rounded to milliseconds.
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1000.0
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
