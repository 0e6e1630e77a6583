//! Filesystems on devices, and where they and the devices appear.
//!
//! What is a mount where loop devices are, is a link where devices are emulated; `Mounter` hides the
//! difference, so that everything above obeys the same rules with and without privileges. Invariants:
//! - A disk with data on it that is no known filesystem is never formatted.
//! - Nothing is removed but mounts and links of the volume, and empty directories and files.
//!
//! Everything here blocks.

use std::path::Path;

pub(crate) use self::disk::Disk;
pub(crate) use self::error::Error;
pub(crate) use self::filesystem::Filesystem;
pub(crate) use self::freeze::Frozen;
pub(crate) use self::mount_source::MountSource;
use self::options::Options;
pub(crate) use self::usage::{Stats, Usage};

mod chown;
mod disk;
pub(crate) mod disk_fault;
mod emulated;
mod error;
mod filesystem;
mod formatting;
mod freeze;
mod kernel;
mod mount_source;
mod options;
mod unmount;
mod usage;

/// How filesystems are brought to paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounter {
    Kernel,
    /// By links.
    Emulated,
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
    /// A disk is formatted only if it is blank, or contains an incomplete mkfs of this driver.
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
                let fs = formatting::prepare(disk, asked)?;
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
    pub(crate) fn is_mounted(self, disk: &Disk, path: &Path) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(disk.tree.is_dir()),
            Self::Kernel => Ok(kernel::device_at(path)? == Some(kernel::number(&disk.device)?)),
        }
    }

    /// Shows what is mounted at `from` at `target` as well.
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
    pub(crate) fn show_device(self, disk: &Disk, target: &Path, readonly: bool) -> Result<(), Error> {
        match self {
            Self::Emulated => emulated::link(&disk.device, target),
            Self::Kernel => kernel::bind_device(&disk.device, target, readonly),
        }
    }

    /// Whether a filesystem may still be mounted at `path`: no if a reboot has undone it.
    pub(crate) fn may_be_mounted(self, path: &Path) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(true),
            Self::Kernel => kernel::is_mount(path),
        }
    }

    /// Lets the filesystem mounted at `path` stand still until what is returned is dropped. What is emulated
    /// cannot, nor can the filesystem that has the media.
    pub(crate) fn freeze(
        self,
        path: &Path,
        volume_files: &Path,
        mark: &Path,
    ) -> Result<Option<Frozen>, Error> {
        match self {
            Self::Emulated => Ok(None),
            Self::Kernel => Frozen::begin(path, volume_files, mark),
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
    pub(crate) fn stats(self, disk: &Disk, path: &Path) -> Result<Stats, Error> {
        match self {
            Self::Emulated => emulated::stats(disk),
            Self::Kernel => kernel::stats(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
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
