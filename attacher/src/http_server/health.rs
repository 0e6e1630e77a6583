//! Who is alive, ready, and leading.
//!
//! - Alive: the dispatcher moves. A driver or an API server that is away is no reason to be killed.
//! - Ready: the driver is connected and all lists are complete. A standby of a leader election is ready when
//!   it could take over: it lists no VolumeAttachments before, but it has its lists of volumes and nodes, has
//!   read who holds the Lease, and no claim of its own to it has failed since. So a rolling upgrade goes on, and a
//!   disruption budget counts it; and one to a version that the API server lets do nothing stops before it takes
//!   away the leader that works.
//! - Leading: as in client-go, a leader is unhealthy when it has not renewed its lease for too long.

use http::StatusCode;
use tokio::time::Instant;

use super::{Page, View};
use crate::kube_api::OngoingFailure;

/// Answers `/healthz`.
pub(super) fn alive(view: &View) -> Page {
    // The rest of the work may take its whole grace; the dispatcher only waits for it.
    match view.heartbeat.stalled(Instant::now()) {
        Some(stalled) if !view.shutdown.is_cancelled() => Page::plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("the dispatcher has not moved for {} s\n", stalled.as_secs()),
        ),
        Some(_) | None => Page::plain(StatusCode::OK, "ok\n"),
    }
}

/// Answers `/readyz`.
pub(super) fn ready(view: &View) -> Page {
    let missing = missing(view);
    if missing.is_empty() {
        return Page::plain(StatusCode::OK, "ok\n");
    }
    let text: String = missing.iter().map(|what| format!("{what}\n")).collect();
    Page::plain(StatusCode::SERVICE_UNAVAILABLE, format!("not ready:\n{text}"))
}

/// What stands between us and readiness.
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
        missing.extend(no_way_to_the_lease(view));
    }
    missing.extend(unlisted(view, leads));
    missing
}

/// Why a standby could not take over, if it could not.
fn no_way_to_the_lease(view: &View) -> Option<String> {
    let Some(status) = view.election().map(|election| election.status()) else {
        return Some("the leader election has not begun".to_owned());
    };
    let status = status.filter(|status| !status.could_take_over())?;
    let what = match status.holder.as_deref() {
        None => "has not been read yet",
        Some(_) if status.claim_failed => "cannot be taken",
        Some(_) => "is held by nobody yet",
    };
    let why = because(status.ongoing_failure.as_ref());
    Some(format!("the lease {} {what}{why}", status.lease))
}

/// Which of the lists that we need are not complete.
fn unlisted(view: &View, leads: bool) -> Vec<String> {
    let Some(listed) = view.stats(0).map(|stats| stats.listed) else {
        return vec!["work has not begun".to_owned()];
    };
    let watches = view.requests.state().watches;
    [
        (
            !leads || listed.attachments,
            "VolumeAttachments",
            "volumeattachments",
        ),
        (listed.volumes, "PersistentVolumes", "persistentvolumes"),
        (listed.nodes, "CSINodes", "csinodes"),
    ]
    .into_iter()
    .filter(|(complete, ..)| !complete)
    .map(|(_, kind, resource)| {
        let why = because(watches.get(resource));
        format!("the list of {kind} is not complete{why}")
    })
    .collect()
}

fn because(ongoing_failure: Option<&OngoingFailure>) -> String {
    ongoing_failure.map_or_else(String::new, |ongoing_failure| {
        format!(": {}", ongoing_failure.why)
    })
}

/// Answers `/healthz/leader-election`, which there is only with a leader election.
pub(super) fn leading(view: &View) -> Option<Page> {
    let health = match view.election() {
        Some(election) => election.health().map_err(|why| why.to_string()),
        None if view.elects => Ok(()),
        None => return None,
    };
    Some(match health {
        Ok(()) => Page::plain(StatusCode::OK, "ok"),
        Err(why) => Page::plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("internal server error: {why}\n"),
        ),
    })
}
