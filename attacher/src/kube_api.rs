//! All that we do to Kubernetes, behind one small trait.
//!
//! Each write is one request that says what is to change and on which very object (by UID), so
//! that it can be repeated when its answer was lost, cannot touch a re-created object of the same
//! name, and cannot drop what others wrote meanwhile. See docs/adr/0003-strategic-merge-patches.md.

mod api;
pub(crate) mod attempt;
pub(crate) mod client;
pub mod events;
pub(crate) mod metrics;
pub mod patch;
mod request_limiter;
mod retry;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use api::ApiServer;
pub use client::{Access, Clients, ConnectError, CredentialsError};
pub use metrics::{FailureStats, OngoingFailure, RequestStats, Requests};
pub use request_limiter::RateLimit;

use crate::leader_election::NotLeading;
use crate::model::{Attachment, Problem, SecretRef, Volume};
use crate::plan::{PvFinalizer, Record};

/// The writes and reads that attaching needs.
///
/// # Cancellation
///
/// Dropping a future may leave its request done or undone. Every request here can be repeated.
pub trait Cluster: Send + Sync + 'static {
    /// Puts our finalizer and the record of the coming publish call on the attachment, in one write.
    fn record(
        &self,
        attachment: &Attachment,
        record: &Record,
    ) -> impl Future<Output = Result<Attachment, Error>> + Send;

    /// Puts our finalizer on a PersistentVolume.
    fn claim(&self, claim: &PvFinalizer) -> impl Future<Output = Result<Volume, Error>> + Send;

    /// `status.attached=true` with the publish context, and no attach error any more.
    fn mark_attached(
        &self,
        attachment: &Attachment,
        context: &BTreeMap<String, String>,
    ) -> impl Future<Output = Result<Attachment, Error>> + Send;

    /// `status.attached=false` without publish context and detach error, for an attachment that
    /// others still hold.
    fn mark_detached(
        &self,
        attachment: &Attachment,
    ) -> impl Future<Output = Result<Attachment, Error>> + Send;

    /// Takes our finalizer off an attachment.
    fn release(&self, attachment: &Attachment) -> impl Future<Output = Result<Released, Error>> + Send;

    /// Takes our finalizer off a PersistentVolume.
    fn release_volume(&self, volume: &Volume) -> impl Future<Output = Result<Volume, Error>> + Send;

    /// Tells what went wrong in `status.attachError` or `status.detachError`.
    fn save_problem(
        &self,
        attachment: &Attachment,
        side: Side,
        problem: &Problem,
    ) -> impl Future<Output = Result<Attachment, Error>> + Send;

    /// Reads an attachment afresh.
    fn attachment(&self, attachment: &Attachment) -> impl Future<Output = Result<Attachment, Error>> + Send;

    /// Reads a PersistentVolume, whatever its driver.
    fn volume(&self, name: &str) -> impl Future<Output = Result<Volume, Error>> + Send;

    /// Reads the content of a Secret.
    fn secret(&self, reference: &SecretRef) -> impl Future<Output = Result<Secrets, Error>> + Send;
}

/// What is left of an attachment after our finalizer came off.
#[derive(Clone, Debug)]
pub enum Released {
    /// Nothing: ours was the last finalizer.
    Gone,
    /// The object, which others still hold.
    Kept(Box<Attachment>),
}

/// Which error of a VolumeAttachment's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `attachError`.
    Attach,
    /// `detachError`.
    Detach,
}

/// How it is told that a Secret has a value that no message of CSI can carry.
pub(crate) const NOT_TEXT: &str = "is not valid UTF-8";

/// The content of a Secret. It shows in no log: `Debug` tells the keys and nothing else.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets(pub BTreeMap<String, String>);

/// A request to the API server that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no object of this name.
    #[error("{0}")]
    NotFound(Arc<str>),
    /// There is an object of this name, but it is another one (other UID).
    #[error("{0}")]
    Replaced(Arc<str>),
    /// The API server refused the request.
    #[error("{message}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// Its explanation.
        message: Arc<str>,
    },
    /// The API server asks to be left alone for longer than a request may wait (Retry-After).
    #[error("{message}")]
    Throttled {
        /// HTTP status.
        status: u16,
        /// Its explanation.
        message: Arc<str>,
        /// For how long.
        after: Duration,
    },
    /// The object is not fit for what it is needed for.
    #[error("{0}")]
    Unusable(Arc<str>),
    /// The request did not come through, or its answer did not come back: it is unknown whether it
    /// took effect.
    #[error("{0}")]
    Unanswered(Arc<str>),
    /// The request was not sent: it would have been a write, and we do not lead.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
}

// === impl Error ===

impl Error {
    /// Whether the object that was to be written does not exist any more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::NotFound(_) | Self::Replaced(_))
    }

    /// Whether we lack the right to do that.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { status: 403, .. })
    }

    /// How long the API server asked to wait.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Throttled { after, .. } => Some(*after),
            Self::NotFound(_)
            | Self::Replaced(_)
            | Self::Refused { .. }
            | Self::Unusable(_)
            | Self::Unanswered(_)
            | Self::NotLeading(_) => None,
        }
    }

    /// Whether our credentials or rights do not suffice.
    pub fn is_unauthorized(&self) -> bool {
        matches!(
            self,
            Self::Refused {
                status: 401 | 403,
                ..
            }
        )
    }

    /// Whether the API server rejects the content of the request and will do so again: neither "not now", nor the word of
    /// a proxy, nor that we may not write (401, 403), which ends when our credentials and rights are back.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused { status, .. } => {
                (400..=499).contains(status) && ![401, 403, 404, 409, 429].contains(status)
            }
            Self::NotFound(_)
            | Self::Replaced(_)
            | Self::Unusable(_)
            | Self::Throttled { .. }
            | Self::Unanswered(_)
            | Self::NotLeading(_) => false,
        }
    }

    /// The HTTP status of the API server's answer; 0 without one.
    pub fn status(&self) -> i64 {
        match self {
            Self::NotFound(_) => 404,
            Self::Replaced(_) => 422,
            Self::Refused { status, .. } | Self::Throttled { status, .. } => (*status).into(),
            Self::Unusable(_) | Self::Unanswered(_) | Self::NotLeading(_) => 0,
        }
    }
}

// === impl Secrets ===

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_of_a_secret_does_not_show() {
        let secrets = Secrets(BTreeMap::from([("user".to_owned(), "hunter2".to_owned())]));
        assert_eq!(format!("{secrets:?}"), r#"{"user"}"#);
    }
}
