//! Errors of the node, with the gRPC codes of the CSI specification.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use crate::node::device;
use crate::node::mount;
use crate::store::volume_files;

/// An error of the node. Texts name the volume, the path and the cure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No record of the volume at that path.
    #[error("volume \"{volume}\" is neither staged nor published at {path}")]
    NotThere {
        /// The volume.
        volume: String,
        /// The path of the request.
        path: String,
    },
    /// It is already staged or published there with other arguments.
    #[error("volume \"{volume}\" is already {done} at {path} with another {field}: undo that first")]
    Otherwise {
        /// The volume.
        volume: String,
        /// `staged` or `published`.
        done: &'static str,
        /// The path.
        path: String,
        /// The first request field that differs.
        field: &'static str,
    },
    /// The path belongs to another volume.
    #[error("{path} is taken: volume \"{volume}\" is {done} there")]
    Taken {
        /// The path.
        path: String,
        /// The other volume.
        volume: String,
        /// `staged` or `published`.
        done: &'static str,
    },
    /// It is staged at another path.
    #[error("volume \"{volume}\" is already staged at {path}: unstage it there first")]
    StagedElsewhere {
        /// The volume.
        volume: String,
        /// The other path.
        path: String,
    },
    /// It is not attached to this node.
    #[error("volume \"{volume}\" is not published to this node: ControllerPublishVolume comes first")]
    NotAttached {
        /// The volume.
        volume: String,
    },
    /// The publish context is stale.
    #[error(
        "publish_context: is of attachment {given} of volume \"{volume}\", which is attached as {current} now"
    )]
    OldContext {
        /// The volume.
        volume: String,
        /// The attachment of the publish context.
        given: String,
        /// The present attachment.
        current: u64,
    },
    /// The publish context differs from the attachment's.
    #[error(
        "publish_context[{key}]: {fault}; pass the publish_context that ControllerPublishVolume returned for volume \"{volume}\""
    )]
    OtherContext {
        /// The volume.
        volume: String,
        /// The first key that differs.
        key: String,
        /// How it differs.
        fault: String,
    },
    /// A directory that the caller must create is missing.
    #[error("{field}: there is no directory {}, which the caller makes before the call", path.display())]
    NoDirectory {
        /// The field of the request.
        field: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// The request has no staging path, but the driver needs one.
    #[error("staging_target_path: must be set, this driver stages volumes")]
    NoStagingPath,
    /// Nothing is staged at the staging path.
    #[error("volume \"{volume}\" is not staged at {path}: NodeStageVolume comes first")]
    NotStaged {
        /// The volume.
        volume: String,
        /// The staging path.
        path: String,
    },
    /// The capability exceeds that of the attachment or stage.
    #[error("volume_capability: volume \"{volume}\" was {done} for {held}, which does not cover {asked}")]
    Unsupported {
        /// The volume.
        volume: String,
        /// `attached` or `staged`.
        done: &'static str,
        /// The capability of the attachment or stage.
        held: String,
        /// The capability of the request.
        asked: String,
    },
    /// It is published at another target, and its access mode allows only one.
    #[error(
        "volume \"{volume}\" is already published at {target} as {mode}, which allows no second target: \
         unpublish it there first"
    )]
    NotShared {
        /// The volume.
        volume: String,
        /// The other target.
        target: String,
        /// The access mode.
        mode: &'static str,
    },
    /// It is still published from the staging path.
    #[error("volume \"{volume}\" is still published at {target}: unpublish it first")]
    StillPublished {
        /// The volume.
        volume: String,
        /// A target.
        target: String,
    },
    /// The volume is in use on this node, which has no ControllerPublishVolume to prevent its deletion.
    #[error("volume \"{volume}\" is in use: it is at {path} on this node; unpublish and unstage it first")]
    InUse {
        /// The volume.
        volume: String,
        /// A path of the volume.
        path: String,
    },
    /// Its disk is mounted through another device.
    #[error(
        "the filesystem of volume \"{volume}\" is mounted already through {}, as by another node: a filesystem \
         is written to through one device at a time; unstage it there first, or use the volume as a raw block device", device.display()
    )]
    MountedElsewhere {
        /// The volume.
        volume: String,
        /// The other device.
        device: PathBuf,
    },
    /// The device did not appear in time.
    #[error("the device of volume \"{volume}\" has not appeared on this node within {waited:?}: try again")]
    NoDevice {
        /// The volume.
        volume: String,
        /// The time waited.
        waited: Duration,
    },
    /// The driver runs with `--devices=none`.
    #[error("this driver has no devices (--devices=none), so it cannot bring volume \"{volume}\" to a path")]
    WithoutDevices {
        /// The volume.
        volume: String,
    },
    /// The capacity range cannot be satisfied.
    #[error("capacity_range: {reason}")]
    Size {
        /// The cause.
        reason: String,
    },
    /// The filesystem cannot grow.
    #[error("volume \"{volume}\" is attached for reading only, so its filesystem cannot grow")]
    CannotGrow {
        /// The volume.
        volume: String,
    },
    /// The process with the array does not respond.
    #[error("the array does not answer: {reason}")]
    NoArray {
        /// The cause.
        reason: String,
    },
    /// The process with the array refused the call.
    #[error("{reason}")]
    Refused {
        /// Its gRPC code.
        code: Code,
        /// Its message.
        reason: String,
    },
    /// A device failed.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// A mount failed.
    #[error(transparent)]
    Mount(#[from] mount::Error),
    /// The volume's file failed.
    #[error(transparent)]
    VolumeFiles(#[from] volume_files::Error),
    /// The state directory is not usable.
    #[error(transparent)]
    State(#[from] crate::store::OpenError),
    /// The record of a path cannot be written. The driver exits.
    #[error("--state-dir: cannot write the record of {path}")]
    Record {
        /// The path.
        path: String,
        /// The cause.
        source: Arc<std::io::Error>,
    },
}

// === impl Error ===

impl Error {
    /// The gRPC code of section "error scheme" of each RPC in the CSI specification.
    pub fn code(&self) -> Code {
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
            | Self::CannotGrow { .. } => Code::FailedPrecondition,
            Self::NoDevice { .. } | Self::NoArray { .. } => Code::Unavailable,
            Self::Size { .. } => Code::OutOfRange,
            Self::Refused { code, .. } => *code,
            Self::Mount(error) => mount_code(error),
            Self::VolumeFiles(error) if error.is_no_space() => Code::ResourceExhausted,
            Self::VolumeFiles(_) | Self::Device(_) | Self::State(_) | Self::Record { .. } => Code::Internal,
        }
    }
}

fn mount_code(error: &mount::Error) -> Code {
    match error {
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
        mount::Error::Damaged(_) | mount::Error::Io { .. } | mount::Error::Program(_) => Code::Internal,
    }
}
