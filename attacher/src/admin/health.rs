//! Who is alive, ready, and leading.
//!
//! - Alive: the dispatcher moves. A driver or an API server that is away is no reason to be killed.
//! - Ready: the driver is connected and, where we work, all lists are complete. A standby of a leader
//!   election lists nothing; it is ready when it could take over, so that a rolling upgrade goes on
//!   and a disruption budget counts it.
//! - Leading: as in client-go, a leader is unhealthy when it has not renewed its lease for too long.

use http::StatusCode;
use tokio::time::Instant;

use super::{Page, View};

/// Answers `/healthz`.
pub(super) fn alive(view: &View) -> Page {
    // The rest of the work may take its whole grace; the dispatcher only waits for it.
    match view.pulse.stalled(Instant::now()) {
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
    let leads = view
        .election
        .get()
        .is_some_and(|election| election.check().is_ok());
    if view.elects && !leads {
        return missing;
    }
    match view.census(0) {
        None => missing.push("work has not begun".to_owned()),
        Some(census) => {
            let listed = census.listed;
            for (complete, what) in [
                (listed.attachments, "VolumeAttachments"),
                (listed.volumes, "PersistentVolumes"),
                (listed.nodes, "CSINodes"),
            ] {
                if !complete {
                    missing.push(format!("the list of {what} is not complete"));
                }
            }
        }
    }
    missing
}

/// Answers `/healthz/leader-election`, which there is only with a leader election.
pub(super) fn leading(view: &View) -> Option<Page> {
    let health = match view.election.get() {
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
