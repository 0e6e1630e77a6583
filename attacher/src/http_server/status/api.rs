//! How the API server has been answering.

use serde::Serialize;
use tokio::time::Instant;

use crate::http_server::View;
use crate::kube_api::{FailureStats, OngoingFailure};

/// The API server.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiStatus {
    /// How many requests wait for their answer.
    pub in_flight: usize,
    /// How long ago the last answer came.
    pub last_answer: Option<f64>,
    /// How long ago we last got what we asked for.
    pub last_success: Option<f64>,
    /// Requests that were turned down: 401, 403, 429 and 5xx.
    pub refused: MissesStatus,
    /// Requests that went without an answer.
    pub unanswered: MissesStatus,
}

/// Requests that came to nothing.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MissesStatus {
    /// How many since the start.
    pub count: u64,
    /// How long ago the last one did.
    pub last: Option<f64>,
    /// How.
    pub error: Option<String>,
}

/// Something that fails again and again.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureStatus {
    /// How often in a row.
    pub times: u32,
    /// How long ago that began.
    pub failing: f64,
    /// How long ago it failed last.
    pub last: f64,
    /// Why.
    pub error: String,
}

// === impl ApiStatus ===

impl ApiStatus {
    pub(super) fn of(view: &View, now: Instant) -> Self {
        let state = view.requests.state();
        let ago = |then: Instant| (now - then).as_secs_f64();
        Self {
            in_flight: state.in_flight,
            last_answer: state.answered.map(ago),
            last_success: state.granted.map(ago),
            refused: MissesStatus::of(&state.refused, now),
            unanswered: MissesStatus::of(&state.unanswered, now),
        }
    }
}

// === impl MissesStatus ===

impl MissesStatus {
    fn of(misses: &FailureStats, now: Instant) -> Self {
        let last = misses.last.as_ref();
        Self {
            count: misses.count,
            last: last.map(|(then, _)| (now - *then).as_secs_f64()),
            error: last.map(|(_, why)| why.to_string()),
        }
    }
}

// === impl FailureStatus ===

impl FailureStatus {
    pub(super) fn of(ongoing_failure: &OngoingFailure, now: Instant) -> Self {
        Self {
            times: ongoing_failure.times,
            failing: (now - ongoing_failure.since).as_secs_f64(),
            last: (now - ongoing_failure.last).as_secs_f64(),
            error: ongoing_failure.why.to_string(),
        }
    }
}
