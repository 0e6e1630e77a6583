//! Errors of the node, with the gRPC codes of the CSI specification.

use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use crate::node::device;
use crate::node::mount;
use crate::store::PathError;
use crate::store::volume_files::ClaimError;

/// An error of the node. Messages name the volume, the path and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("volume \"{volume}\" is already {done} at {path} with another {field}: undo that first")]
    Otherwise {
        volume: String,
        done: &'static str,
        path: String,
        field: &'static str,
    },
    #[error("{path} is taken: volume \"{volume}\" is {done} there")]
    Taken {
        path: String,
        volume: String,
        done: &'static str,
    },
    #[error("volume \"{volume}\" is already staged at {path}: unstage it there first")]
    StagedElsewhere { volume: String, path: String },
    #[error(
        "volume \"{volume}\" is already published at {target} as {mode}, which allows no second target: \
         unpublish it there first"
    )]
    NotShared {
        volume: String,
        target: String,
        mode: &'static str,
    },
    #[error("the device of volume \"{volume}\" has not appeared on this node within {waited:?}: try again")]
    NoDevice { volume: String, waited: Duration },
    /// An error that no caller distinguishes.
    #[error("{reason}")]
    Refused { code: Code, reason: String },
    #[error(transparent)]
    Device(#[from] device::Error),
    #[error(transparent)]
    Mount(#[from] mount::Error),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    MediaDir(#[from] ClaimError),
    #[error(transparent)]
    State(#[from] crate::store::OpenError),
    /// The record of a path cannot be written. The driver exits.
    #[error("--state-dir: cannot write the record of {path}")]
    Record {
        path: String,
        source: Arc<std::io::Error>,
    },
}

// === impl Error ===

impl Error {
    pub(crate) fn refused(code: Code, reason: String) -> Self {
        Self::Refused { code, reason }
    }

    pub(crate) fn failed_precondition(reason: String) -> Self {
        Self::refused(Code::FailedPrecondition, reason)
    }

    pub(crate) fn not_attached(volume: &str) -> Self {
        Self::failed_precondition(format!(
            "volume \"{volume}\" is not published to this node: ControllerPublishVolume comes first"
        ))
    }

    pub(crate) fn not_staged(volume: &str, path: &str) -> Self {
        Self::failed_precondition(format!(
            "volume \"{volume}\" is not staged at {path}: NodeStageVolume comes first"
        ))
    }

    pub(crate) fn in_use(volume: &str, path: &str) -> Self {
        Self::failed_precondition(format!(
            "volume \"{volume}\" is in use: it is at {path} on this node; unpublish and unstage it first"
        ))
    }

    pub(crate) fn size(reason: &str) -> Self {
        Self::refused(Code::OutOfRange, format!("capacity_range: {reason}"))
    }

    pub(crate) fn no_array(reason: &str) -> Self {
        Self::refused(Code::Unavailable, format!("the array does not answer: {reason}"))
    }

    /// The gRPC code of section "error scheme" of each RPC in the CSI specification.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::Otherwise { .. } | Self::Taken { .. } => Code::AlreadyExists,
            Self::StagedElsewhere { .. } | Self::NotShared { .. } | Self::MediaDir(_) => {
                Code::FailedPrecondition
            }
            Self::NoDevice { .. } => Code::Unavailable,
            Self::Refused { code, .. } => *code,
            Self::Mount(error) => mount_code(error),
            Self::Path(error) | Self::Device(device::Error::Path(error)) if error.is_no_space() => {
                Code::ResourceExhausted
            }
            Self::Path(_) | Self::Device(_) | Self::State(_) | Self::Record { .. } => Code::Internal,
        }
    }
}

fn mount_code(error: &mount::Error) -> Code {
    match error {
        mount::Error::Path(error) if error.is_no_space() => Code::ResourceExhausted,
        mount::Error::Options { .. } => Code::InvalidArgument,
        mount::Error::Group { .. }
        | mount::Error::UnknownData { .. }
        | mount::Error::OtherFilesystem { .. }
        | mount::Error::BlankAndReadOnly
        | mount::Error::HalfFormatted
        | mount::Error::CannotGrowInUse(_)
        | mount::Error::Busy { .. }
        | mount::Error::Refused(_) => Code::FailedPrecondition,
        mount::Error::Damaged(_) | mount::Error::Path(_) | mount::Error::Program(_) => Code::Internal,
    }
}
