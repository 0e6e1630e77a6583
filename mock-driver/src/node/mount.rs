//! Filesystems on devices, and mounts of filesystems and devices.
//!
//! Where devices are emulated, a mount is a link. `Mounter` hides the difference, so that the same rules hold with and
//! without privileges. Invariants:
//! - A disk with data that is not a known filesystem is never formatted.
//! - Only mounts and links of the volume, and empty directories and files, are removed.
//!
//! All functions block.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

pub(crate) use self::error::Error;
pub(crate) use self::filesystem::Filesystem;
pub(crate) use self::formatting::wipe_interrupted;
pub(crate) use self::kernel::{check_empty, device_at, is_mount, mount_fuse, remove_empty};
use self::options::Options;

mod chown;
mod disk_fault;
mod emulated;
mod error;
mod filesystem;
mod formatting;
mod kernel;
mod options;

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// The file with the volume's data.
    pub(crate) file: PathBuf,
    /// The directory that emulates the mounted filesystem.
    pub(crate) tree: PathBuf,
    /// The mark that the disk is being formatted.
    pub(crate) formatting: PathBuf,
    pub(crate) device: PathBuf,
    /// The open device, which keeps its path from being reused for another disk. `None` if the file itself is the device.
    pub(crate) _held: Option<Arc<File>>,
    pub(crate) writable: bool,
    /// The lock against other nodes on the machine, which programs inherit.
    pub(crate) lock: Option<Arc<File>>,
    /// Stops mkfs and scans.
    pub(crate) stop: CancellationToken,
}

/// The source of a mount at a path, to distinguish the volume from another process's mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MountSource {
    /// The block device with this number, or the filesystem on it.
    Device(u64),
    Link(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounter {
    Kernel,
    /// As links.
    Emulated,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Available to unprivileged users.
    pub(crate) available: u64,
    pub(crate) total: u64,
    pub(crate) used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stats {
    pub(crate) bytes: Usage,
    pub(crate) inodes: Usage,
}

// === impl Mounter ===

impl Mounter {
    /// Checks the type before anything is changed.
    pub(crate) fn supports(fs_type: &str) -> Result<(), Error> {
        Filesystem::asked(fs_type).map(drop)
    }

    /// Creates or checks the filesystem of a disk, grows it to the size of the disk, and mounts it at `path`, which must
    /// exist. Idempotent.
    ///
    /// # Guarantees
    /// A disk is formatted only if it is blank, or contains an incomplete mkfs of this driver.
    ///
    /// # Errors
    /// The disk contains other data, or a step fails; then nothing is mounted.
    pub(crate) fn mount(
        self,
        disk: &Disk,
        path: &Path,
        fs_type: &str,
        flags: &[String],
        group: &str,
    ) -> Result<(), Error> {
        let asked = Filesystem::asked(fs_type)?;
        match self {
            Self::Emulated => {
                emulated::prepare(disk, asked)?;
                if disk.writable && !Options::read(flags).is_read_only() {
                    chown::give(&disk.tree, group)?;
                }
                Ok(())
            }
            Self::Kernel => {
                if kernel::device_at(path)? == Some(kernel::number(&disk.device)?) {
                    return Ok(());
                }
                let mut options = Options::read(flags);
                let fs = formatting::prepare(disk, asked)?;
                options.add_for(fs, disk.writable);
                kernel::mount(&disk.device, path, fs, &options, flags)?;
                if disk.writable && !options.is_read_only() {
                    if fs == Filesystem::Xfs {
                        filesystem::grow(fs, &disk.device, path)?;
                    }
                    chown::give(path, group)?;
                }
                Ok(())
            }
        }
    }

    pub(crate) fn is_mounted(self, disk: &Disk, path: &Path) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(disk.tree.is_dir()),
            Self::Kernel => Ok(kernel::device_at(path)? == Some(kernel::number(&disk.device)?)),
        }
    }

    /// Bind-mounts the filesystem mounted at `from` at `target`.
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

    pub(crate) fn show_device(self, disk: &Disk, target: &Path, readonly: bool) -> Result<(), Error> {
        match self {
            Self::Emulated => emulated::link(&disk.device, target),
            Self::Kernel => kernel::bind_device(&disk.device, target, readonly),
        }
    }

    pub(crate) fn grow(self, disk: &Disk, path: &Path) -> Result<(), Error> {
        match self {
            Self::Emulated => Ok(()),
            Self::Kernel => match filesystem::found(&disk.device)? {
                Some(fs) => filesystem::grow(fs, &disk.device, path),
                None => Ok(()),
            },
        }
    }

    pub(crate) fn stats(self, disk: &Disk, path: &Path) -> Result<Stats, Error> {
        match self {
            Self::Emulated => emulated::stats(disk),
            Self::Kernel => kernel::stats(path),
        }
    }

    pub(crate) fn files_of(self, disk: &Disk) -> Result<MountSource, Error> {
        Ok(match self {
            Self::Emulated => MountSource::Link(disk.tree.clone()),
            Self::Kernel => MountSource::Device(kernel::number(&disk.device)?),
        })
    }

    pub(crate) fn device_of(self, device: &Path) -> Result<MountSource, Error> {
        Ok(match self {
            Self::Emulated => MountSource::Link(device.to_owned()),
            Self::Kernel => MountSource::Device(kernel::number(device)?),
        })
    }

    /// Whether `target`, mounted from `from`, is read-only exactly if requested. An emulated link is never
    /// read-only and always passes.
    pub(crate) fn has_read_only_mode(
        self,
        target: &Path,
        from: &Path,
        readonly: bool,
        flags: &[String],
    ) -> Result<bool, Error> {
        match self {
            Self::Emulated => Ok(true),
            Self::Kernel => {
                let asked = readonly || Options::read(flags).is_read_only();
                match (asked, kernel::is_read_only(target)?) {
                    // The filesystem is read-only, as after an error.
                    (false, true) => kernel::is_read_only(from),
                    (asked, found) => Ok(asked == found),
                }
            }
        }
    }
}

/// The mount or link at `path`, of whatever kind the devices were when it was created.
pub(crate) fn source_at(path: &Path) -> Result<Option<MountSource>, Error> {
    match kernel::source_at(path)? {
        Some(mounted) => Ok(Some(mounted)),
        None => emulated::source_at(path),
    }
}

/// Unmounts the driver's mounts at `path`, and removes its link. Keeps the path of a mount.
pub(crate) fn unmount(path: &Path, is_ours: impl Fn(&MountSource) -> bool) -> Result<(), Error> {
    kernel::unmount(path, &is_ours)?;
    emulated::unlink(path, is_ours)
}

// === impl Stats ===

impl Stats {
    /// The usage of an empty filesystem on a disk of that size.
    pub(crate) fn empty(bytes: u64) -> Self {
        let unused = |total| Usage {
            available: total,
            total,
            used: 0,
        };
        Self {
            bytes: unused(bytes),
            inodes: unused(bytes / emulated::BYTES_PER_INODE),
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
            lock: None,
            stop: CancellationToken::new(),
        }
    }

    pub(super) fn mk_blank_disk(bytes: u64) -> (tempfile::TempDir, Disk) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        File::create(&path).unwrap().set_len(bytes).unwrap();
        (directory, mk_disk(&path))
    }
}
