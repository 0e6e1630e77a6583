//! Mount and unmount errors.

use std::io;
use std::path::{Path, PathBuf};

use crate::node::exec;

/// Mount and unmount errors.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not take the options.
    #[error("volume_capability.mount.mount_flags: the kernel refuses to mount {} with {flags:?}", path.display())]
    Options {
        /// Path.
        path: PathBuf,
        /// The options.
        flags: Vec<String>,
    },
    /// The files may not be given to the group.
    #[error(
        "volume_capability.mount.volume_mount_group: this process may not give {} to group {group}: run it as root \
         or as a member of the group, or take NODE_VOLUME_MOUNT_GROUP out of its --capabilities", path.display()
    )]
    Group {
        /// What could not be given.
        path: PathBuf,
        /// Group id.
        group: u32,
        /// The cause.
        source: io::Error,
    },
    /// No such filesystem.
    #[error("fs_type \"{fs_type}\" is not supported: ask for ext4, ext3, ext2 or xfs, or for none")]
    UnknownType {
        /// Requested filesystem.
        fs_type: String,
    },
    /// There is data on the disk, and it is no filesystem we know.
    #[error("the volume contains {found}; refusing to format it: wipe it to use it as {fs}")]
    UnknownData {
        /// What it looks like.
        found: &'static str,
        /// What it should have become.
        fs: &'static str,
    },
    /// There is another filesystem on it.
    #[error(
        "the volume holds a filesystem of type {found}, not {fs} as asked: ask for {found}, or wipe the volume"
    )]
    OtherFilesystem {
        /// What is on it.
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
    /// The filesystem's errors are beyond what can be repaired without asking.
    #[error("the filesystem on the volume is damaged")]
    Damaged(#[source] exec::Error),
    /// It grows only when it is not mounted.
    #[error(
        "the filesystem cannot grow while it is mounted, for want of the capability SYS_RESOURCE: \
         it grows when the volume is staged the next time"
    )]
    CannotGrowInUse(#[source] exec::Error),
    /// It is in use.
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
        /// Why it is in the way.
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
