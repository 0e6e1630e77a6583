//! `/statusz`: the whole state as YAML, or with `?format=json` as JSON.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use jiff::Timestamp;
use serde::Serialize;
use tokio::time::Instant;

use super::{VERSION, View, health};
use crate::controller::state::{ControllerState, LastRound, QueueStats, ReconcileMetrics, Rounds, lock};
use crate::csi::ConnectionStats;
use crate::leader_election::{ElectionStatus, Leadership};
use crate::report::{OngoingFailure, seconds, time};
use crate::workqueue::{Class, Entry, Key, Stage};

/// The number of work items that are shown of each stage; the rest is counted.
const SHOWN_ITEMS: usize = 50;

/// The whole state. Durations are in seconds. Texts may contain anything; both formats escape control characters.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    version: &'static str,
    time: String,
    up: f64,
    /// The unmet conditions in `/readyz`.
    not_ready: Vec<String>,
    driver: ConnectionStats,
    leader_election: Option<Election>,
    lists: Vec<ListStatus>,
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

#[derive(Serialize)]
struct ReconcileStatus {
    last: f64,
    took: f64,
    listed: u64,
    #[serde(flatten)]
    result: LastRound,
    #[serde(flatten)]
    totals: ReconcileMetrics,
}

#[derive(Serialize)]
struct LaneStatus {
    lane: &'static str,
    #[serde(flatten)]
    stats: QueueStats,
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
    why: Option<String>,
    failures: u32,
    /// Since the first of the consecutive failures.
    failing: Option<f64>,
    error: Option<String>,
}

pub(super) async fn page(State(view): State<Arc<View>>, RawQuery(query): RawQuery) -> Response {
    let status = Status::of(&view);
    let query = query.unwrap_or_default();
    let format = query.split('&').find_map(|pair| pair.strip_prefix("format="));
    let (content_type, text) = match format {
        // A browser shows plain text.
        None | Some("" | "text") => (
            "text/plain; charset=utf-8",
            serde_saphyr::to_string(&status).map_err(|error| error.to_string()),
        ),
        Some("json") => (
            "application/json",
            serde_json::to_string_pretty(&status).map_err(|error| error.to_string()),
        ),
        Some(_) => return (StatusCode::BAD_REQUEST, "format must be text or json\n").into_response(),
    };
    match text {
        Ok(text) => ([(CONTENT_TYPE, content_type)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
    }
}

// === impl Status ===

impl Status {
    fn of(view: &View) -> Self {
        // It locks the state, too.
        let not_ready = health::missing(view);
        let state = view.state();
        let state = state.as_deref().map(lock);
        let state = state.as_deref();
        let (now, wall) = (Instant::now(), view.now());
        let lanes = state.map(|state| state.lanes(now.into())).unwrap_or_default();
        let works = |stage: fn(&Stage) -> bool| {
            let work = |state| works(state, stage, now.into(), wall);
            state.map(work).unwrap_or_default()
        };
        Self {
            version: VERSION,
            time: time(wall),
            up: seconds(now - view.started),
            not_ready,
            driver: view.calls.connection(),
            leader_election: view.election().as_ref().and_then(Election::of),
            lists: state.map(|state| lists(state, view)).unwrap_or_default(),
            reconcile: state.and_then(|state| ReconcileStatus::of(&state.rounds, now)),
            lanes: lanes
                .into_iter()
                .map(|(lane, stats)| LaneStatus {
                    lane: lane.name(),
                    oldest: (stats.depth() > 0).then(|| seconds(stats.age(wall))),
                    stats,
                })
                .collect(),
            running: works(|stage| matches!(stage, Stage::Running { .. })),
            ready: works(|stage| matches!(stage, Stage::Ready { .. })),
            waiting: works(|stage| matches!(stage, Stage::Waiting { .. })),
        }
    }
}

fn lists(state: &ControllerState, view: &View) -> Vec<ListStatus> {
    let watches = view.requests.watches();
    let status = |(resource, complete, objects)| ListStatus {
        resource,
        complete,
        objects,
        failure: watches.get(resource).cloned(),
    };
    state.caches().map(status).into()
}

fn works(
    state: &ControllerState,
    stage: fn(&Stage) -> bool,
    now: std::time::Instant,
    wall: Timestamp,
) -> Vec<WorkStatus> {
    let items = state.longest(stage, now, SHOWN_ITEMS).into_iter();
    let status = |(key, entry)| WorkStatus::of(key, entry, state, now, wall);
    items.map(status).collect()
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
    fn of(rounds: &Rounds, now: Instant) -> Option<Self> {
        let result = rounds.last.clone()?;
        let since = now.into_std().saturating_duration_since(result.round.ended);
        Some(Self {
            last: seconds(since),
            took: seconds(result.round.took),
            listed: result.round.listed,
            result,
            totals: rounds.metrics,
        })
    }
}

// === impl WorkStatus ===

impl WorkStatus {
    fn of(
        key: &Key,
        entry: &Entry,
        state: &ControllerState,
        now: std::time::Instant,
        wall: Timestamp,
    ) -> Self {
        let (name, volume, node) = match key {
            Key::Attachment(name) => {
                let attachment = state.index.attachments.get(name);
                let volume = attachment.and_then(|attachment| attachment.volume_name());
                let node = attachment.map(|attachment| &attachment.node);
                (name.to_string(), volume, node)
            }
            Key::Volume(name) => (name.to_string(), Some(name), None),
            Key::Target(target) => {
                let node = state.orphans.get(target).map(|o| &o.attachment.node);
                (format!("{} on {}", target.volume_id, target.node_id), None, node)
            }
        };
        let since = |then| seconds(now.saturating_duration_since(then));
        let (elapsed, next) = match entry.stage {
            Stage::Ready { since: began, .. } | Stage::Running { since: began, .. } => {
                (Some(since(began)), None)
            }
            Stage::Waiting { until: (until, _) } => {
                (None, Some(seconds(until.saturating_duration_since(now))))
            }
        };
        let wanted = state.requested_at(key).map(|since| {
            let ago = wall.duration_since(since);
            seconds(Duration::try_from(ago).unwrap_or_default())
        });
        let failures = entry.failures.as_ref();
        Self {
            lane: entry.lane.name(),
            name,
            volume: volume.map(ToString::to_string),
            node: node.map(ToString::to_string),
            wanted,
            elapsed,
            next,
            why: state.waits_for(entry, now).or_else(|| {
                let failures = failures.filter(|_| next.is_some())?;
                Some(why(failures.last.class).to_owned())
            }),
            failures: failures.map_or(0, |failures| failures.times),
            failing: failures.map(|failures| since(failures.since)),
            error: failures.map(|failures| failures.last.message.clone()),
        }
    }
}

fn why(class: Class) -> &'static str {
    match class {
        Class::Final => "the operation was refused; retry after backoff",
        Class::Refused => {
            "the operation cannot succeed in this state; retry after backoff, or when one of its objects changes"
        }
        Class::Unproven => {
            "nothing proves that the volume is unpublished; retry after backoff, when the CSINode changes, or after a list"
        }
        Class::Uncertain => "the result is unknown or the error is temporary; retry after backoff",
        Class::Interrupted => "the driver disconnected during the call; retry when it reconnects",
        Class::Disconnected => "the driver is not connected; retry when it reconnects",
    }
}

#[cfg(test)]
mod tests;
