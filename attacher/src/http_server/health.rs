//! Liveness, readiness and leadership.
//!
//! - Live: the control loop iterates. An unavailable driver or API server is no reason to restart the container.
//! - Ready: the driver is connected and all caches are synced. A standby lists no VolumeAttachments; it is ready if it
//!   could take over: its caches of volumes and nodes are synced, it has read the Lease's holder, and its last attempt
//!   to acquire the Lease did not fail. So a rolling update proceeds and a disruption budget counts standbys, but an
//!   update to a version without the necessary permissions stops before the working leader is terminated.
//! - Leading: as in client-go, a leader is unhealthy that has not renewed its lease in time.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use tokio::time::Instant;

use super::View;
use crate::controller::state::lock;
use crate::report::OngoingFailure;

type Page = (StatusCode, String);

/// `/healthz`
pub(super) async fn alive(State(view): State<Arc<View>>) -> Page {
    match view.heartbeat.stalled(Instant::now()) {
        // After SIGTERM the loop only waits for running syncs, as long as the grace period allows.
        Some(stalled) if !view.shutdown.is_cancelled() => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the control loop has been stuck for {} s\n", stalled.as_secs()),
        ),
        Some(_) | None => (StatusCode::OK, "ok\n".to_owned()),
    }
}

/// `/readyz`
pub(super) async fn ready(State(view): State<Arc<View>>) -> Page {
    let missing = missing(&view);
    if missing.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let text: String = missing.iter().map(|what| format!("{what}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, format!("not ready:\n{text}"))
}

/// `/healthz/leader-election`
pub(super) async fn leading(State(view): State<Arc<View>>) -> Page {
    match view.election().map_or(Ok(()), |election| election.health()) {
        Ok(()) => (StatusCode::OK, "ok".to_owned()),
        Err(why) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {why}\n"),
        ),
    }
}

/// The unmet conditions of readiness.
pub(super) fn missing(view: &View) -> Vec<String> {
    let mut missing = Vec::new();
    if view.shutdown.is_cancelled() {
        missing.push("the attacher is shutting down".to_owned());
    }
    let connection = view.calls.connection();
    if !connection.up {
        let why = connection
            .last_failure
            .map_or_else(String::new, |why| format!(": {why}"));
        missing.push(format!("the CSI driver is not connected{why}"));
    }
    let leads = !view.elects || view.election().is_some_and(|election| election.check().is_ok());
    if !leads {
        missing.extend(standby_problem(view));
    }
    missing.extend(unsynced(view, leads));
    missing
}

/// The reason that this standby could not become leader.
fn standby_problem(view: &View) -> Option<String> {
    let Some(status) = view.election().map(|election| election.status()) else {
        return Some("the leader election has not started".to_owned());
    };
    let status = status.filter(|status| !status.could_take_over())?;
    let problem = match status.holder.as_deref() {
        None => "has not been read yet",
        Some(_) if status.claim_failed => "cannot be acquired",
        Some(_) => "has no holder yet",
    };
    let why = because(status.ongoing_failure.as_ref());
    Some(format!("the lease {} {problem}{why}", status.lease))
}

/// The caches that are not synced.
fn unsynced(view: &View, leads: bool) -> Vec<String> {
    let Some(synced) = view.state().map(|state| lock(&state).caches_synced) else {
        return vec!["the controller has not started".to_owned()];
    };
    let watches = view.requests.watches();
    [
        (
            !leads || synced.attachments,
            "VolumeAttachments",
            "volumeattachments",
        ),
        (synced.volumes, "PersistentVolumes", "persistentvolumes"),
        (synced.nodes, "CSINodes", "csinodes"),
    ]
    .into_iter()
    .filter(|(is_synced, ..)| !is_synced)
    .map(|(_, kind, resource)| {
        let why = because(watches.get(resource));
        format!("the cache of {kind} is not synced{why}")
    })
    .collect()
}

fn because(ongoing_failure: Option<&OngoingFailure>) -> String {
    ongoing_failure.map_or_else(String::new, |ongoing_failure| {
        format!(": {}", ongoing_failure.why)
    })
}
