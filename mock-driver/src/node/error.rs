//! Why the node's side did not do what was asked, and the code each reason has in the specification.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tonic::Code;

use crate::node::device;
use crate::node::mount;
use crate::store::volume_files;

/// A refusal or failure of the node's side. Texts name the volume, the path and the way out.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing of the volume is at that path.
    #[error("volume \"{volume}\" is neither staged nor published at {path}")]
    NotThere {
        /// The volume.
        volume: String,
        /// The path asked for.
        path: String,
    },
    /// Staged or published there already, in another way.
    #[error("volume \"{volume}\" is already {done} at {path} with another {field}: undo that first")]
    Otherwise {
        /// The volume.
        volume: String,
        /// What was done: staged or published.
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
        /// The volume that has it.
        volume: String,
        /// What was done: staged or published.
        done: &'static str,
    },
    /// Staged at another path.
    #[error("volume \"{volume}\" is already staged at {path}: unstage it there first")]
    StagedElsewhere {
        /// The volume.
        volume: String,
        /// Where it is staged.
        path: String,
    },
    /// Not attached to this node.
    #[error("volume \"{volume}\" is not published to this node: ControllerPublishVolume comes first")]
    NotAttached {
        /// The volume.
        volume: String,
    },
    /// The context is of an attachment that is no more.
    #[error(
        "publish_context: is of attachment {given} of volume \"{volume}\", which is attached as {current} now"
    )]
    OldContext {
        /// The volume.
        volume: String,
        /// The attachment the caller knows.
        given: String,
        /// The attachment there is.
        current: u64,
    },
    /// The context is not the one that the volume was attached with.
    #[error(
        "publish_context[{key}]: {fault}; pass the publish_context that ControllerPublishVolume returned for volume \"{volume}\""
    )]
    OtherContext {
        /// The volume.
        volume: String,
        /// The first key that is wrong.
        key: String,
        /// What is wrong with it.
        fault: String,
    },
    /// What the caller makes before the call is not there.
    #[error("{field}: there is no directory {}, which the caller makes before the call", path.display())]
    NoDirectory {
        /// The field of the request.
        field: &'static str,
        /// The directory.
        path: PathBuf,
    },
    /// No staging path was given, and staging is needed.
    #[error("staging_target_path: must be set, this driver stages volumes")]
    NoStagingPath,
    /// Nothing is staged at the path.
    #[error("volume \"{volume}\" is not staged at {path}: NodeStageVolume comes first")]
    NotStaged {
        /// The volume.
        volume: String,
        /// The staging path.
        path: String,
    },
    /// The capability is more than the volume was attached or staged for.
    #[error("volume_capability: volume \"{volume}\" was {done} for {held}, which does not cover {asked}")]
    Unsupported {
        /// The volume.
        volume: String,
        /// What was done with it.
        done: &'static str,
        /// For what.
        held: String,
        /// What is asked now.
        asked: String,
    },
    /// The volume is published at another target, and its mode allows one.
    #[error(
        "volume \"{volume}\" is already published at {target} as {mode}, which allows no second target: \
         unpublish it there first"
    )]
    NotShared {
        /// The volume.
        volume: String,
        /// The other target.
        target: String,
        /// The mode that does not allow it.
        mode: &'static str,
    },
    /// The volume is still published from where it is to be unstaged.
    #[error("volume \"{volume}\" is still published at {target}: unpublish it first")]
    StillPublished {
        /// The volume.
        volume: String,
        /// A target.
        target: String,
    },
    /// The volume is used here, and nothing but this tells that it is in use.
    #[error("volume \"{volume}\" is in use: it is at {path} on this node; unpublish and unstage it first")]
    InUse {
        /// The volume.
        volume: String,
        /// A path where it is.
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
    /// The device does not show up.
    #[error("the device of volume \"{volume}\" has not appeared on this node within {waited:?}: try again")]
    NoDevice {
        /// The volume.
        volume: String,
        /// How long we waited.
        waited: Duration,
    },
    /// The driver was started without devices.
    #[error("this driver has no devices (--devices=none), so it cannot bring volume \"{volume}\" to a path")]
    WithoutDevices {
        /// The volume.
        volume: String,
    },
    /// The size cannot be had.
    #[error("capacity_range: {reason}")]
    Size {
        /// Why not.
        reason: String,
    },
    /// The filesystem cannot grow.
    #[error("volume \"{volume}\" is attached for reading only, so its filesystem cannot grow")]
    CannotGrow {
        /// The volume.
        volume: String,
    },
    /// The array's process does not answer.
    #[error("the array does not answer: {reason}")]
    NoArray {
        /// What happened.
        reason: String,
    },
    /// The array's process refuses.
    #[error("{reason}")]
    Refused {
        /// With which code.
        code: Code,
        /// Why.
        reason: String,
    },
    /// Devices failed.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// Mounting failed.
    #[error(transparent)]
    Mount(#[from] mount::Error),
    /// The volume's bytes failed.
    #[error(transparent)]
    VolumeFiles(#[from] volume_files::Error),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] crate::store::OpenError),
    /// The record of a path cannot be written. The driver stops.
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
    /// The gRPC code, as section "error scheme" of each RPC in the specification asks.
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
