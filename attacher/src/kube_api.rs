//! Requests to the API server, behind one small trait.
//!
//! Each write is one patch with the object's UID, so that it can be repeated when its response was lost, cannot touch a
//! re-created object of the same name, and cannot drop concurrent writes of others. See docs/adr/0003-strategic-merge-patches.md.

mod api;
mod client;
pub mod events;
mod lease;
mod metrics;
pub mod patch;
mod request_limiter;
mod retry;
mod review;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use api::ApiServer;
pub(crate) use client::Clients;
pub use client::{Access, ConnectError, CredentialsError};
pub(crate) use lease::ApiLease;
pub use metrics::Requests;
pub(crate) use request_limiter::{Priority, Rate, RateLimit};
pub(crate) use review::Reviews;
pub(crate) use status::{MAX_RETRY_AFTER, TOO_MANY_REQUESTS};

use crate::leader_election::NotLeading;
use crate::model::{Attachment, Problem, SecretRef, Secrets, Uid, Version, Volume};
use crate::plan::{Operation, Proof, Record};
use crate::report::chain;

/// The API server, as far as the controller uses it.
///
/// # Cancellation
///
/// Dropping a future may leave its request done or undone. Every request here can be repeated.
pub trait Cluster: Send + Sync + 'static {
    /// Reads or writes an attachment. The response to the removal of its last finalizer is the deleted object.
    fn attachment(
        &self,
        attachment: &Attachment,
        request: AttachmentRequest<'_>,
    ) -> impl Future<Output = Result<Attachment, Error>> + Send;

    /// Reads or writes a PersistentVolume, whatever its driver.
    fn volume(
        &self,
        name: &str,
        request: VolumeRequest<'_>,
    ) -> impl Future<Output = Result<Volume, Error>> + Send;

    /// Whether the CSINode of this name exists.
    fn has_node(&self, name: &str) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Reads the content of a Secret.
    fn secret(&self, reference: &SecretRef) -> impl Future<Output = Result<Secrets, Error>> + Send;
}

/// A request about a VolumeAttachment.
#[derive(Clone, Copy, Debug)]
pub enum AttachmentRequest<'a> {
    /// Reads it.
    Get,
    /// Adds our finalizer and the record of the coming publish call, in one write to this version.
    Record(&'a Record),
    /// Writes `status.attached=true` with the publish context, and removes the attach error, in this version.
    MarkAttached(&'a BTreeMap<String, String>),
    /// Writes `status.attached=false` and removes publish context and detach error, if finalizers of others keep the object.
    MarkDetached,
    /// Writes `status.attachError` or `status.detachError`, in this version.
    SaveError(Operation, &'a Problem),
    /// Removes our finalizer.
    RemoveFinalizer(&'a Proof),
}

impl AttachmentRequest<'_> {
    /// Whether the write is for the version from which it was decided. Others are right whatever was stored since.
    pub fn is_of_one_version(&self) -> bool {
        matches!(
            self,
            Self::Record(_) | Self::MarkAttached(_) | Self::SaveError(..)
        )
    }
}

/// A request about a PersistentVolume. Writes name its UID.
#[derive(Clone, Copy, Debug)]
pub enum VolumeRequest<'a> {
    /// Reads it.
    Get,
    /// Adds our finalizer.
    AddFinalizer(&'a Uid),
    /// Removes our finalizer from this version.
    RemoveFinalizer(&'a Volume),
}

/// A VolumeAttachment according to the API server.
pub(crate) enum Newest {
    Exists(Box<Attachment>),
    /// In this version, if known.
    Deleted(Option<Version>),
}

/// Message for a Secret's value that is not a protobuf string.
pub(crate) const NOT_TEXT: &str = "is not valid UTF-8";

/// A request to the API server that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The object does not exist: the API server said so, and named it.
    #[error("{0}")]
    NotFound(Arc<str>),
    /// The object of this name has another UID.
    #[error("{0}")]
    Replaced(Arc<str>),
    /// The API server rejected the request.
    #[error("{message}")]
    Rejected {
        /// HTTP status.
        status: u16,
        /// Its explanation.
        message: Arc<str>,
        /// Its Retry-After, if it exceeds the maximum wait of a request.
        retry_after: Option<Duration>,
    },
    /// The object's content is invalid.
    #[error("{0}")]
    Unusable(Arc<str>),
    /// There was no response, so it is unknown whether the request took effect.
    #[error("{0}")]
    Unanswered(Arc<str>),
    /// The write was not sent because we do not lead.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
}

/// Sends a request about a VolumeAttachment.
///
/// The volume of an absent one counts as unpublished, so a write that was not found counts only if a read agrees.
pub(crate) async fn send(
    cluster: &impl Cluster,
    attachment: &Attachment,
    request: AttachmentRequest<'_>,
) -> Result<Newest, Error> {
    let is_read = matches!(request, AttachmentRequest::Get);
    let mut answer = cluster.attachment(attachment, request).await;
    if let Err(error) = &answer
        && error.is_gone()
        && !is_read
    {
        let exists = |_| {
            Err(Error::Unanswered(
                format!("{error}, although the VolumeAttachment exists").into(),
            ))
        };
        answer = cluster
            .attachment(attachment, AttachmentRequest::Get)
            .await
            .and_then(exists);
    }
    match answer {
        Ok(newest) if newest.is_deleted() => Ok(Newest::Deleted(Some(newest.version))),
        Ok(newest) => Ok(Newest::Exists(newest.into())),
        Err(error) if error.is_gone() => Ok(Newest::Deleted(None)),
        Err(error) => Err(error),
    }
}

// === impl Error ===

impl Error {
    /// Whether the object does not exist any more.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::NotFound(_) | Self::Replaced(_))
    }

    /// Whether the object has another version than the request's.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Rejected { status: 409, .. })
    }

    pub(crate) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Rejected { status: 403, .. })
    }

    /// Whether the object's content is invalid, or its name.
    pub(crate) fn is_unusable(&self) -> bool {
        matches!(self, Self::Unusable(_))
    }

    /// Whether our credentials or permissions are insufficient.
    pub(crate) fn is_unauthorized(&self) -> bool {
        matches!(
            self,
            Self::Rejected {
                status: 401 | 403,
                ..
            }
        )
    }

    /// Whether the API server rejects the content of the request permanently. After any other error a write must be repeated as
    /// it is.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Rejected { status, .. } if retry::FINAL.contains(status))
    }

    /// The HTTP status of the response; 0 without one.
    pub fn status(&self) -> i64 {
        match self {
            Self::NotFound(_) => 404,
            Self::Replaced(_) => 422,
            Self::Rejected { status, .. } => (*status).into(),
            Self::Unusable(_) | Self::Unanswered(_) | Self::NotLeading(_) => 0,
        }
    }
}

impl From<kube::core::request::Error> for Error {
    fn from(error: kube::core::request::Error) -> Self {
        Self::Unusable(chain(&error).into())
    }
}
