//! Everything a call can fail with, and the gRPC status it becomes: one complete match.

use std::error::Error as StdError;

use tonic::{Code, Status};

use crate::backend;
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
                backend::Error::VolumeNotFound { .. } | backend::Error::NodeNotFound { .. } => Code::NotFound,
                backend::Error::NameTaken { .. } | backend::Error::AttachedDifferently { .. } => {
                    Code::AlreadyExists
                }
                backend::Error::SizeOutOfRange { .. } => Code::OutOfRange,
                backend::Error::InUse { .. }
                | backend::Error::NotSupported { .. }
                | backend::Error::AttachedElsewhere { .. } => Code::FailedPrecondition,
                backend::Error::NodeFull { .. } => Code::ResourceExhausted,
                backend::Error::ForeignToken => Code::Aborted,
            },
            Self::Store(store::Error::Lost(_)) | Self::Broken => Code::Internal,
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
