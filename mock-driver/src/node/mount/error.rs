//! Mount and unmount errors.

use std::io;
use std::path::{Path, PathBuf};

use crate::node::exec;

/// Mount and unmount errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not support the options.
    #[error("volume_capability.mount.mount_flags: the kernel refuses to mount {} with {flags:?}", path.display())]
    Options {
        /// Path.
        path: PathBuf,
        /// The options.
        flags: Vec<String>,
    },
    /// The files' group cannot be changed.
    #[error(
        "volume_capability.mount.volume_mount_group: this process may not give {} to group {group}: run it as root \
         or as a member of the group, or take NODE_VOLUME_MOUNT_GROUP out of its --capabilities", path.display()
    )]
    Group {
        /// The file.
        path: PathBuf,
        /// Group id.
        group: u32,
        /// The cause.
        source: io::Error,
    },
    /// The filesystem type is not supported.
    #[error("fs_type \"{fs_type}\" is not supported: ask for ext4, ext3, ext2 or xfs, or for none")]
    UnknownType {
        /// Requested filesystem.
        fs_type: String,
    },
    /// The disk contains data that is not a known filesystem.
    #[error("the volume contains {found}; refusing to format it: wipe it to use it as {fs}")]
    UnknownData {
        /// The kind of data.
        found: &'static str,
        /// Requested filesystem.
        fs: &'static str,
    },
    /// The disk contains another filesystem.
    #[error(
        "the volume holds a filesystem of type {found}, not {fs} as asked: ask for {found}, or wipe the volume"
    )]
    OtherFilesystem {
        /// Its type.
        found: &'static str,
        /// Requested filesystem.
        fs: &'static str,
    },
    /// The volume is blank and read-only, so it cannot be formatted.
    #[error(
        "the volume is blank and cannot be written to, so it cannot be formatted: publish it writable first"
    )]
    BlankAndReadOnly,
    /// An interrupted mkfs left a partial filesystem on a read-only volume.
    #[error(
        "the volume holds the beginning of a filesystem, left by a mkfs that was cut off, and cannot be written \
         to, so it cannot be wiped: publish it writable first"
    )]
    HalfFormatted,
    /// fsck cannot repair the filesystem without a decision by the administrator.
    #[error("the filesystem on the volume is damaged")]
    Damaged(#[source] exec::Error),
    /// The filesystem can grow only while it is not mounted.
    #[error(
        "the filesystem cannot grow while it is mounted, for want of the capability SYS_RESOURCE: \
         it grows when the volume is staged the next time"
    )]
    CannotGrowInUse(#[source] exec::Error),
    /// The mount is in use.
    #[error("{} is in use: end the processes that have files open there", path.display())]
    Busy {
        /// Path.
        path: PathBuf,
    },
    /// A mount or file that the driver did not create occupies the path.
    #[error("{} {reason}: remove it first", path.display())]
    InTheWay {
        /// Path.
        path: PathBuf,
        /// The reason.
        reason: &'static str,
    },
    /// An operation failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// Attempted operation.
        act: &'static str,
        /// Path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program failed.
    #[error(transparent)]
    Program(#[from] exec::Error),
}

// === impl Error ===

impl Error {
    pub(crate) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { act, path, source }
    }

    pub(super) fn errno(act: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.to_owned();
        move |errno| Self::Io {
            act,
            path,
            source: errno.into(),
        }
    }
}
