//! What an elector asks for, what comes of it, and how its time ends.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Send this, and hand its answer to [`ElectionState::looked`](super::ElectionState::looked) or
    /// [`ElectionState::wrote`](super::ElectionState::wrote).
    Send {
        /// What.
        request: Request,
        /// Give up waiting for the answer then.
        deadline: Instant,
    },
    /// Nothing before this time, unless the lease is seen to change.
    Wait(Instant),
    /// Stop working: we lead no longer, and never will again.
    Stop(Lost),
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Read the lease.
    Look,
    /// Create it.
    Create(Box<Lease>),
    /// Replace the version of it that was read.
    Update(Box<Lease>),
}

/// A request that was not granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseError {
    /// The lease is another than the one that was read: look again.
    Conflict,
    /// Nobody knows whether it was granted, or will be yet.
    Unanswered(String),
    /// It was not, for this reason.
    Refused(String),
}

/// Why we lead no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The API server could not be reached in time, or we were suspended.
    #[error("the lease {lease} could not be renewed within {within:?}")]
    Unrenewed {
        /// The lease.
        lease: String,
        /// `--leader-election-renew-deadline`.
        within: Duration,
    },
    /// Somebody else holds it.
    #[error("the lease {lease} is held by {holder:?} now")]
    Taken {
        /// The lease.
        lease: String,
        /// By whom; empty: somebody emptied it.
        holder: String,
    },
    /// Somebody holds it in our name.
    #[error(
        "another process that calls itself {identity:?} has taken the lease {lease}: give each replica a host name of its own"
    )]
    SameIdentity {
        /// The lease.
        lease: String,
        /// Our name.
        identity: String,
    },
}
