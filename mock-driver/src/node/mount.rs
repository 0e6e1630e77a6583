//! Filesystems on devices, and where they and the devices appear.
//!
//! What is a mount where loop devices are, is a link where devices are emulated; `Mounter` hides the
//! difference, so that everything above obeys the same rules with and without privileges. Invariants:
//! - A disk with data on it that is no known filesystem is never formatted.
//! - Nothing is removed but mounts and links of the volume, and empty directories and files.
//!
//! Everything here blocks.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use self::disk_fault::DiskFault;
pub(crate) use self::filesystem::Filesystem;
pub(crate) use self::freeze::Frozen;
pub(crate) use self::mount_source::MountSource;
use self::options::Options;
pub(crate) use self::usage::{Stats, Usage};
use crate::node::exec;

mod chown;
mod disk_fault;
mod emulated;
mod filesystem;
mod formatting;
mod freeze;
mod kernel;
mod mount_source;
mod options;
mod usage;

/// How filesystems are brought to paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounter {
    /// By the kernel.
    Kernel,
    /// By links.
    Emulated,
}

/// The disk of a volume as the node has it.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// What holds the bytes.
    pub(crate) file: PathBuf,
    /// The files that stand for the filesystem where none can be mounted.
    pub(crate) tree: PathBuf,
    /// The mark that the disk is being formatted.
    pub(crate) formatting: PathBuf,
    /// The device.
    pub(crate) device: PathBuf,
    /// The device kept open, so that its path leads to no other disk as long as this lives. None for a file
    /// that stands for a device.
    pub(crate) _held: Option<Arc<File>>,
    /// Whether it may be written to.
    pub(crate) writable: bool,
}

/// A requested filesystem.
#[derive(Clone, Debug)]
pub(crate) struct MountParams<'a> {
    /// Its type, as it was asked for; empty for what is there, or the default.
    pub(crate) fs_type: &'a str,
    /// The mount options.
    pub(crate) flags: &'a [String],
    /// The group that is to own the files; empty for none.
    pub(crate) group: &'a str,
}

/// Why something is not mounted, or still is.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel does not take the options.
    #[error("volume_capability.mount.mount_flags: the kernel refuses to mount {} with {flags:?}", path.display())]
    Options {
        /// Where.
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
        /// To whom.
        group: u32,
        /// How it failed.
        source: io::Error,
    },
    /// No such filesystem.
    #[error("fs_type \"{fs_type}\" is not supported: ask for ext4, ext3, ext2 or xfs, or for none")]
    UnknownType {
        /// What was asked for.
        fs_type: String,
    },
    /// There is data on the disk, and it is no filesystem we know.
    #[error(
        "the volume holds {found}, which is no filesystem of ours; it is not formatted: wipe it to use it as {fs}"
    )]
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
        /// What was asked for.
        fs: &'static str,
    },
    /// There is nothing on it, and nothing can be put there.
    #[error(
        "the volume is blank and cannot be written to, so it cannot be formatted: publish it writable first"
    )]
    BlankAndReadOnly,
    /// What is left of a mkfs that was cut off, which must not be written to.
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
        /// What.
        path: PathBuf,
    },
    /// Something that is not ours is in the way.
    #[error("{} {reason}: remove it first", path.display())]
    InTheWay {
        /// What.
        path: PathBuf,
        /// Why it is in the way.
        reason: &'static str,
    },
    /// An operation failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// How it failed.
        source: io::Error,
    },
    /// A program failed.
    #[error(transparent)]
    Program(#[from] exec::Error),
}

// === impl Mounter ===

impl Mounter {
    /// Checks what can be checked before anything is touched.
    ///
    /// # Errors
    /// For a filesystem that does not exist here.
    pub(crate) fn supports(fs_type: &str) -> Result<(), Error> {
        Filesystem::asked(fs_type).map(drop)
    }

    /// Makes sure there is a filesystem on the disk, whole and as large as the disk, and mounts it at
    /// `path`, which exists. Done already, it does nothing.
    ///
    /// # Guarantees
    /// A disk is formatted only if it is blank, or if we were interrupted formatting it and nobody has had
    /// it since.
    ///
    /// # Errors
    /// If the disk holds something else, or the work fails; nothing is mounted then.
    pub(crate) fn mount(self, disk: &Disk, path: &Path, wanted: &MountParams<'_>) -> Result<(), Error> {
        let asked = Filesystem::asked(wanted.fs_type)?;
        match self {
            Self::Emulated => {
                emulated::prepare(disk, asked)?;
                if disk.writable && !Options::read(wanted.flags).is_read_only() {
                    chown::give(&disk.tree, wanted.group)?;
                }
                Ok(())
            }
            Self::Kernel => {
                if kernel::device_at(path)? == Some(kernel::number(&disk.device)?) {
                    return Ok(());
                }
                let mut options = Options::read(wanted.flags);
                let fs = filesystem::prepare(disk, asked)?;
                options.add_for(fs, disk.writable);
                kernel::mount(&disk.device, path, fs, &options, wanted.flags)?;
                if disk.writable && !options.is_read_only() {
                    if fs == Filesystem::Xfs {
                        filesystem::grow(fs, &disk.device, path)?;
                    }
                    chown::give(path, wanted.group)?;
                }
                Ok(())
            }
        }
    }

    /// Makes sure that what is on the disk is its user's alone, before it is handed out as a device: what a
    /// mkfs left that was cut off is wiped, and from then on nothing is taken for such a rest.
    ///
    /// # Errors
    /// If there is such a rest and it cannot be wiped.
    pub(crate) fn hand_over(self, disk: &Disk) -> Result<(), Error> {
        formatting::hand_over(disk)
    }

    /// Whether the disk's filesystem is mounted at `path`.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub(crate) fn is_mounted(self, disk: &Disk, path: &Path) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(disk.tree.is_dir()),
            Self::Kernel => Ok(kernel::device_at(path)? == Some(kernel::number(&disk.device)?)),
        }
    }

    /// Shows what is mounted at `from` at `target` as well.
    ///
    /// # Errors
    /// If something is in the way, or the kernel refuses.
    pub(crate) fn show_files(
        self,
        disk: &Disk,
        from: &Path,
        target: &Path,
        readonly: bool,
        flags: &[String],
    ) -> Result<(), Error> {
        match self {
            Self::Emulated => {
                if readonly {
                    tracing::warn!(target = %target.display(), "emulated: a link does not refuse writes");
                }
                emulated::link(&disk.tree, target)
            }
            Self::Kernel => kernel::bind_directory(from, target, readonly, flags),
        }
    }

    /// Shows the device at `target`.
    ///
    /// # Errors
    /// If something is in the way, or the kernel refuses.
    pub(crate) fn show_device(self, disk: &Disk, target: &Path, readonly: bool) -> Result<(), Error> {
        match self {
            Self::Emulated => emulated::link(&disk.device, target),
            Self::Kernel => kernel::bind_device(&disk.device, target, readonly),
        }
    }

    /// Whether a filesystem may still be mounted at `path`: no if a reboot has undone it.
    ///
    /// # Errors
    /// If that cannot be found out.
    pub(crate) fn may_be_mounted(self, path: &Path) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(true),
            Self::Kernel => kernel::is_mount(path),
        }
    }

    /// Lets the filesystem mounted at `path` stand still until what is returned is dropped. What is emulated
    /// cannot, nor can the filesystem that has the media.
    ///
    /// # Errors
    /// If it cannot be frozen.
    pub(crate) fn freeze(self, path: &Path, media: &Path, mark: &Path) -> Result<Option<Frozen>, Error> {
        match self {
            Self::Emulated => Ok(None),
            Self::Kernel => Frozen::begin(path, media, mark),
        }
    }

    /// Thaws what was left frozen, as a mark says.
    pub(crate) fn thaw_left(self, mark: &Path) {
        match self {
            Self::Emulated => {}
            Self::Kernel => freeze::thaw_left(mark),
        }
    }

    /// Makes the filesystem mounted at `path` as large as the disk.
    ///
    /// # Errors
    /// If it cannot grow.
    pub(crate) fn grow(self, disk: &Disk, path: &Path) -> Result<(), Error> {
        match self {
            Self::Emulated => Ok(()),
            Self::Kernel => match filesystem::found(&disk.device)? {
                Some(fs) => filesystem::grow(fs, &disk.device, path),
                None => Ok(()),
            },
        }
    }

    /// How full the filesystem at `path` is.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn stats(self, disk: &Disk, path: &Path) -> Result<Stats, Error> {
        match self {
            Self::Emulated => emulated::stats(disk),
            Self::Kernel => kernel::stats(path),
        }
    }
}

// === impl Error ===

impl Error {
    pub(crate) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { act, path, source }
    }

    fn errno(act: &'static str, path: &Path) -> impl FnOnce(rustix::io::Errno) -> Self {
        let path = path.to_owned();
        move |errno| Self::Io {
            act,
            path,
            source: errno.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The disk whose device is this file, with all that belongs to it beside it.
    pub(super) fn mk_disk(path: &Path) -> Disk {
        Disk {
            file: path.to_owned(),
            tree: path.with_file_name("tree"),
            formatting: path.with_file_name("formatting"),
            device: path.to_owned(),
            _held: None,
            writable: true,
        }
    }

    /// A blank one, in a directory of its own.
    pub(super) fn mk_blank_disk(bytes: u64) -> (tempfile::TempDir, Disk) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        (directory, mk_disk(&path))
    }
}
