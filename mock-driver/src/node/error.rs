//! Errors of the node, with the gRPC codes of the CSI specification.

use std::path::PathBuf;
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
    #[error("volume \"{volume}\" is neither staged nor published at {path}")]
    NotThere { volume: String, path: String },
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
    #[error("volume \"{volume}\" is not published to this node: ControllerPublishVolume comes first")]
    NotAttached { volume: String },
    #[error(
        "publish_context: is of attachment {given} of volume \"{volume}\", which is attached as {current} now"
    )]
    OldContext {
        volume: String,
        given: String,
        current: u64,
    },
    #[error(
        "publish_context[{key}]: {fault}; pass the publish_context that ControllerPublishVolume returned for volume \"{volume}\""
    )]
    OtherContext {
        volume: String,
        key: String,
        fault: String,
    },
    #[error("{field}: there is no directory {}, which the caller makes before the call", path.display())]
    NoDirectory { field: &'static str, path: PathBuf },
    #[error("staging_target_path: must be set, this driver stages volumes")]
    NoStagingPath,
    #[error("volume \"{volume}\" is not staged at {path}: NodeStageVolume comes first")]
    NotStaged { volume: String, path: String },
    #[error("volume_capability: volume \"{volume}\" was {done} for {held}, which does not cover {asked}")]
    Unsupported {
        volume: String,
        done: &'static str,
        held: String,
        asked: String,
    },
    #[error(
        "volume \"{volume}\" is already published at {target} as {mode}, which allows no second target: \
         unpublish it there first"
    )]
    NotShared {
        volume: String,
        target: String,
        mode: &'static str,
    },
    #[error("volume \"{volume}\" is still published at {target}: unpublish it first")]
    StillPublished { volume: String, target: String },
    #[error("volume \"{volume}\" is in use: it is at {path} on this node; unpublish and unstage it first")]
    InUse { volume: String, path: String },
    #[error(
        "the filesystem of volume \"{volume}\" is mounted already through {}, as by another node: a filesystem \
         is written to through one device at a time; unstage it there first, or use the volume as a raw block device", device.display()
    )]
    MountedElsewhere { volume: String, device: PathBuf },
    #[error("the device of volume \"{volume}\" has not appeared on this node within {waited:?}: try again")]
    NoDevice { volume: String, waited: Duration },
    #[error("this driver has no devices (--devices=none), so it cannot bring volume \"{volume}\" to a path")]
    WithoutDevices { volume: String },
    #[error("capacity_range: {reason}")]
    Size { reason: String },
    #[error("volume \"{volume}\" is attached for reading only, so its filesystem cannot grow")]
    CannotGrow { volume: String },
    #[error("the array does not answer: {reason}")]
    NoArray { reason: String },
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
    /// The gRPC code of section "error scheme" of each RPC in the CSI specification.
    pub(crate) fn code(&self) -> Code {
        match self {
            Self::NotThere { .. } => Code::NotFound,
            Self::OtherContext { .. } => Code::InvalidArgument,
            Self::Otherwise { .. } | Self::Taken { .. } => Code::AlreadyExists,
            Self::StagedElsewhere { .. }
            | Self::NotAttached { .. }
            | Self::OldContext { .. }
            | Self::NoStagingPath
            | Self::NoDirectory { .. }
            | Self::NotStaged { .. }
            | Self::Unsupported { .. }
            | Self::NotShared { .. }
            | Self::StillPublished { .. }
            | Self::WithoutDevices { .. }
            | Self::InUse { .. }
            | Self::MountedElsewhere { .. }
            | Self::MediaDir(_)
            | Self::CannotGrow { .. } => Code::FailedPrecondition,
            Self::NoDevice { .. } | Self::NoArray { .. } => Code::Unavailable,
            Self::Size { .. } => Code::OutOfRange,
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
        | mount::Error::UnknownType { .. }
        | mount::Error::UnknownData { .. }
        | mount::Error::OtherFilesystem { .. }
        | mount::Error::BlankAndReadOnly
        | mount::Error::HalfFormatted
        | mount::Error::CannotGrowInUse(_)
        | mount::Error::Busy { .. }
        | mount::Error::InTheWay { .. } => Code::FailedPrecondition,
        mount::Error::Damaged(_) | mount::Error::Path(_) | mount::Error::Program(_) => Code::Internal,
    }
}
