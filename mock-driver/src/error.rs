//! Everything a call can fail with, and the gRPC status it becomes: one complete match.

use std::error::Error as StdError;

use tonic::{Code, Status};

use crate::backend;
use crate::busy::Busy;
use crate::media;
use crate::node;
use crate::request::Invalid;
use crate::store;

/// Why a call was not answered with what it asked for.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request is malformed.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The array refused, or its state cannot be made safe.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The credentials are not those that were asked for.
    #[error("secrets: the value of \"{key}\" is wrong")]
    Unauthenticated {
        /// The key.
        key: String,
    },
    /// The bytes of a volume or snapshot cannot be had.
    #[error(transparent)]
    Media(#[from] media::Error),
    /// The node's side refused or failed.
    #[error(transparent)]
    Node(#[from] node::Error),
    /// Another call for the same volume is running.
    #[error("another call for {subject} is still running: try again")]
    Busy {
        /// The volume.
        subject: String,
    },
    /// The RPC is not offered.
    #[error("{path} is not offered by this driver")]
    NotOffered {
        /// The RPC.
        path: &'static str,
    },
    /// A fault rule answered.
    #[error("{message}")]
    Injected {
        /// The rule's code.
        code: Code,
        /// The rule's text.
        message: String,
    },
    /// A place that the snapshot does not have.
    #[error("starting_offset: must be from 0 to {size}, the snapshot's size, is {offset}")]
    OffsetOutOfRange {
        /// The offset asked for.
        offset: i64,
        /// The size of the snapshot.
        size: u64,
    },
    /// The driver was told to say that it is not healthy.
    #[error("the driver is not healthy: something it needs is missing")]
    Unhealthy,
    /// The driver itself is broken.
    #[error("the driver failed in the middle of this call; its log says more")]
    Broken,
}

// === impl Error ===

impl Error {
    /// The gRPC code, as section "error scheme" of each RPC in the specification asks.
    pub fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::InvalidArgument,
            Self::Store(store::Error::Refused(refusal)) => match refusal {
                backend::Error::VolumeNotFound { .. }
                | backend::Error::NodeNotFound { .. }
                | backend::Error::SnapshotNotFound { .. }
                | backend::Error::GroupNotFound { .. }
                | backend::Error::PoolNotFound { .. } => Code::NotFound,
                backend::Error::Illegal { .. } => Code::InvalidArgument,
                backend::Error::NameTaken { .. } | backend::Error::AttachedDifferently { .. } => {
                    Code::AlreadyExists
                }
                backend::Error::SizeOutOfRange { .. } | backend::Error::PoolTooLarge { .. } => {
                    Code::OutOfRange
                }
                backend::Error::InUse { .. }
                | backend::Error::NotSupported { .. }
                | backend::Error::AttachedElsewhere { .. }
                | backend::Error::HasDependants { .. }
                | backend::Error::Online { .. }
                | backend::Error::CannotGroup { .. }
                | backend::Error::PoolInUse { .. }
                | backend::Error::OutOfReach { .. } => Code::FailedPrecondition,
                backend::Error::NodeFull { .. } | backend::Error::NoRoom { .. } => Code::ResourceExhausted,
                backend::Error::ForeignToken | backend::Error::NotReady { .. } => Code::Aborted,
            },
            Self::Store(store::Error::Lost(_)) | Self::Broken => Code::Internal,
            Self::Media(error) if error.is_no_space() => Code::ResourceExhausted,
            Self::Media(_) => Code::Internal,
            Self::Unauthenticated { .. } => Code::Unauthenticated,
            Self::OffsetOutOfRange { .. } => Code::OutOfRange,
            Self::Unhealthy => Code::FailedPrecondition,
            Self::Node(error) => error.code(),
            Self::Busy { .. } => Code::Aborted,
            Self::NotOffered { .. } => Code::Unimplemented,
            Self::Injected { code, .. } => *code,
        }
    }

    /// The text for the caller: every cause, in one line.
    pub fn message(&self) -> String {
        chain(self)
    }
}

impl From<backend::Error> for Error {
    fn from(refusal: backend::Error) -> Self {
        Self::Store(refusal.into())
    }
}

impl From<Busy> for Error {
    fn from(Busy(key): Busy) -> Self {
        Self::Busy {
            subject: key.to_string(),
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.message())
    }
}

/// An error and its causes, joined by colons.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
