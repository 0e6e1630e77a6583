use std::io;
use std::path::{Path, PathBuf};

use crate::node::exec;
use crate::store::PathError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("volume_capability.mount.mount_flags: the kernel refuses to mount {} with {flags:?}", path.display())]
    Options { path: PathBuf, flags: Vec<String> },
    #[error(
        "volume_capability.mount.volume_mount_group: this process may not give {} to group {group}: run it as root \
         or as a member of the group, or take NODE_VOLUME_MOUNT_GROUP out of its --capabilities", path.display()
    )]
    Group {
        path: PathBuf,
        group: u32,
        source: io::Error,
    },
    #[error("the volume contains {found}; refusing to format it: wipe it to use it as {fs}")]
    UnknownData { found: &'static str, fs: &'static str },
    #[error(
        "the volume holds a filesystem of type {found}, not {fs} as asked: ask for {found}, or wipe the volume"
    )]
    OtherFilesystem { found: &'static str, fs: &'static str },
    #[error(
        "the volume is blank and cannot be written to, so it cannot be formatted: publish it writable first"
    )]
    BlankAndReadOnly,
    #[error(
        "the volume holds the beginning of a filesystem, left by a mkfs that was cut off, and cannot be written \
         to, so it cannot be wiped: publish it writable first"
    )]
    HalfFormatted,
    #[error("the filesystem on the volume is damaged")]
    Damaged(#[source] exec::Error),
    #[error(
        "the filesystem cannot grow while it is mounted, for want of the capability SYS_RESOURCE: \
         it grows when the volume is staged the next time"
    )]
    CannotGrowInUse(#[source] exec::Error),
    #[error("{} is in use: end the processes that have files open there", path.display())]
    Busy { path: PathBuf },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Program(#[from] exec::Error),
}

// === impl Error ===

impl Error {
    pub(crate) fn in_the_way(path: &Path, reason: &'static str) -> Self {
        Self::Refused(format!("{} {reason}: remove it first", path.display()))
    }
}
