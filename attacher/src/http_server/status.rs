//! The state in full: one structure, shown as text and as JSON.

mod api;

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::{VERSION, View, health};
use crate::controller::state::{Pending, QueueStats, Stats};
use crate::leader_election::Leadership;
use crate::report::time;
use crate::workqueue::{Class, Key, Lane};
pub use api::{ApiStatus, FailureStatus, MissesStatus};

/// How much work is named for each stage; the rest is counted.
pub(super) const MOST: usize = 50;

/// The state. All durations are seconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Of this program.
    pub version: &'static str,
    /// When it was looked at.
    pub time: String,
    /// For how long the process has been running.
    pub up: f64,
    /// What stands between us and readiness.
    pub not_ready: Vec<String>,
    /// The CSI driver.
    pub driver: DriverStatus,
    /// The leader election, if there is one.
    pub leader_election: Option<ElectionStatus>,
    /// What is watched.
    pub lists: Vec<ListStatus>,
    /// The API server.
    pub api: ApiStatus,
    /// The comparison with the driver's list, once there was one.
    pub reconcile: Option<ReconcileStatus>,
    /// The lanes.
    pub lanes: Vec<LaneStatus>,
    /// What runs.
    pub running: Vec<WorkStatus>,
    /// What stands in line.
    pub ready: Vec<WorkStatus>,
    /// What waits to be tried again.
    pub waiting: Vec<WorkStatus>,
}

/// The CSI driver.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DriverStatus {
    /// Its name, once it is known.
    pub name: Option<String>,
    /// Whether it is connected.
    pub connected: bool,
    /// For how long that has been so.
    pub since: Option<f64>,
    /// How often it was connected again.
    pub reconnects: u64,
    /// Why the last attempt to connect failed.
    pub last_failure: Option<String>,
    /// What it could do when it was last connected.
    pub capabilities: Vec<&'static str>,
}

/// The leader election.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ElectionStatus {
    /// Name of the lease.
    pub lease: String,
    /// What we call ourselves in it.
    pub identity: String,
    /// Whether we lead.
    pub leads: bool,
    /// The holder's identity; empty if the lease is free, none if it has not been read yet.
    pub holder: Option<String>,
    /// How long ago we last renewed it.
    pub renewed: Option<f64>,
    /// Why requests about it fail, if they do.
    pub failure: Option<FailureStatus>,
    /// Why the health of the election is bad, if it is.
    pub problem: Option<String>,
}

/// One kind of objects.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListStatus {
    /// Plural of the kind.
    pub resource: &'static str,
    /// Whether the first list is complete.
    pub complete: bool,
    /// How many objects are known.
    pub objects: usize,
    /// Why it cannot be listed or watched, if so.
    pub failure: Option<FailureStatus>,
}

/// The comparison of all attachments with what the driver lists.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReconcileStatus {
    /// How long ago the last one ended.
    pub last: f64,
    /// How long it took.
    pub took: f64,
    /// How many volumes the driver listed in it.
    pub listed: u64,
    /// How many attachments it found lost; they are published again.
    pub lost: u64,
    /// How many volumes it found on a node for no attachment any more; they are unpublished.
    pub leftover: u64,
    /// Why it came to nothing, if it did.
    pub error: Option<String>,
    /// How many were completed since the start.
    pub completed: u64,
    /// How many came to nothing.
    pub failed: u64,
    /// How many repairs have succeeded.
    pub repaired: u64,
    /// How many repairs could not be made as things stood.
    pub refused: u64,
}

/// One lane.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneStatus {
    /// Its name.
    pub lane: &'static str,
    /// How many may run at once.
    pub limit: usize,
    /// How many run.
    pub running: usize,
    /// How many stand in line.
    pub ready: usize,
    /// How many wait to be tried again.
    pub waiting: usize,
    /// Age of the oldest of them, if there are any.
    pub oldest: Option<f64>,
}

/// One piece of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkStatus {
    /// What is done.
    pub lane: &'static str,
    /// Name of the VolumeAttachment, or of the PersistentVolume whose finalizer is to go.
    pub name: String,
    /// The PersistentVolume.
    pub volume: Option<String>,
    /// The node.
    pub node: Option<String>,
    /// How long ago it was asked for.
    pub wanted: Option<f64>,
    /// For how long it has been running or standing in line.
    pub elapsed: Option<f64>,
    /// How long until it is tried again.
    pub next: Option<f64>,
    /// What it waits for.
    pub why: Option<&'static str>,
    /// How often in a row it failed.
    pub failures: u32,
    /// How long ago that began.
    pub failing: Option<f64>,
    /// What went wrong last.
    pub error: Option<String>,
}

// === impl Status ===

impl Status {
    /// Looks at everything.
    pub fn of(view: &View) -> Self {
        let stats = view.stats(MOST);
        let now = Instant::now();
        Self {
            version: VERSION,
            time: time(view.now()),
            up: (now - view.started).as_secs_f64(),
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
            running: works(view, stats.as_ref().map(|stats| &stats.running)),
            ready: works(view, stats.as_ref().map(|stats| &stats.ready)),
            waiting: works(view, stats.as_ref().map(|stats| &stats.waiting)),
        }
    }
}

fn lists(stats: &Stats, view: &View, now: Instant) -> Vec<ListStatus> {
    let (listed, known) = (stats.listed, stats.known);
    let watches = view.requests.state().watches;
    [
        ("volumeattachments", listed.attachments, known.attachments),
        ("persistentvolumes", listed.volumes, known.volumes),
        ("csinodes", listed.nodes, known.nodes),
    ]
    .map(|(resource, complete, objects)| ListStatus {
        resource,
        complete,
        objects,
        failure: watches
            .get(resource)
            .map(|trouble| FailureStatus::of(trouble, now)),
    })
    .into()
}

fn works(view: &View, pending: Option<&Vec<Pending>>) -> Vec<WorkStatus> {
    pending
        .into_iter()
        .flatten()
        .map(|pending| WorkStatus::of(pending, view))
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
            renewed: status.renewed.map(|renewed| (now - renewed).as_secs_f64()),
            failure: status
                .ongoing_failure
                .map(|trouble| FailureStatus::of(&trouble, now)),
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
            since: connection.since.map(|since| (now - since).as_secs_f64()),
            reconnects: connection.opened.saturating_sub(1),
            last_failure: connection.last_failure,
            capabilities: capabilities.unwrap_or_default(),
        }
    }
}

// === impl ReconcileStatus ===

impl ReconcileStatus {
    fn of(stats: &Stats, now: Instant) -> Option<Self> {
        let last = stats.last_survey.as_ref()?;
        let since = now.into_std().saturating_duration_since(last.round.ended);
        Some(Self {
            last: since.as_secs_f64(),
            took: last.round.took.as_secs_f64(),
            listed: last.round.listed,
            lost: last.lost,
            leftover: last.leftover,
            error: last.error.as_ref().map(ToString::to_string),
            completed: stats.surveys.rounds,
            failed: stats.surveys.failed_rounds,
            repaired: stats.surveys.repaired,
            refused: stats.surveys.refused,
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
            oldest: (stats.depth() > 0).then(|| stats.age(view.now()).as_secs_f64()),
        }
    }
}

// === impl WorkStatus ===

impl WorkStatus {
    fn of(pending: &Pending, view: &View) -> Self {
        let name = match &pending.key {
            Key::Attachment(name) | Key::Volume(name) => name.to_string(),
            Key::Target(target) => format!("{} on {}", target.volume_id, target.node_id),
        };
        let failure = pending.failure.as_ref();
        let wanted = pending.wanted_since.map(|since| {
            let ago = view.now().duration_since(since);
            Duration::try_from(ago).unwrap_or_default().as_secs_f64()
        });
        Self {
            lane: pending.lane.name(),
            name: name.to_string(),
            volume: pending.volume.as_ref().map(ToString::to_string),
            node: pending.node.as_ref().map(ToString::to_string),
            wanted,
            elapsed: pending.next.is_none().then_some(pending.elapsed.as_secs_f64()),
            next: pending.next.map(|(next, _)| next.as_secs_f64()),
            why: pending.next.map(|(_, class)| why(class)),
            failures: failure.map_or(0, |failure| failure.times),
            failing: failure.map(|failure| failure.since.as_secs_f64()),
            error: failure.map(|failure| failure.message.to_string()),
        }
    }
}

fn why(class: Class) -> &'static str {
    match class {
        Class::Final => "it was refused; it is tried again after a pause",
        Class::Refused => {
            "it cannot be done as things stand; it is tried again after a pause, and at once when something changes"
        }
        Class::Uncertain => "its result is not known, or it is to be tried again; it is asked for again",
        Class::Interrupted => "the driver went away during the call; it is called again when it is back",
        Class::Disconnected => "the driver is not connected; it is called when it is back",
    }
}
