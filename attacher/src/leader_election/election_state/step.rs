//! The elector's steps, their failures, and the end of a term.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::leader_election) enum Step {
    /// Send this, and pass the response to [`ElectionState::on_get`](super::ElectionState::on_get) or
    /// [`ElectionState::on_write`](super::ElectionState::on_write).
    Send { request: Request, deadline: Instant },
    /// Wait until then, or until the watch shows a change.
    Wait(Instant),
    /// Stop: leadership was lost permanently.
    Stop(LeadershipLost),
}

#[derive(Clone, Debug, PartialEq)]
pub(in crate::leader_election) enum Request {
    Get,
    /// Update the Lease at its resourceVersion, or create the Lease if it does not exist.
    Write(Box<Lease>),
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseError {
    /// The Lease changed since it was read (409).
    Conflict,
    /// No response: it may have been executed, or will be.
    Unanswered(String),
    /// It was rejected, for this reason.
    Rejected(String),
}

/// The cause of lost leadership.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum LeadershipLost {
    /// The API server was unreachable, or the process suspended, for too long.
    #[error("the lease {lease} could not be renewed within {within:?}: {cause}")]
    Unrenewed {
        lease: String,
        /// The lease duration and the tolerance of the health check.
        within: Duration,
        /// The last error of a request, or that none failed.
        cause: String,
    },
    #[error("the lease {lease} is held by {holder:?} now")]
    Taken {
        lease: String,
        /// The holder; empty if the lease was emptied.
        holder: String,
    },
    #[error(
        "another process that calls itself {identity:?} has taken the lease {lease}: give each replica a host name of its own"
    )]
    SameIdentity { lease: String, identity: String },
}
