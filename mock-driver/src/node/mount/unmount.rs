//! Mount sources of paths, and unmounting of the driver's own mounts.

use std::path::Path;

use super::error::Error;
use super::options::Options;
use super::{Disk, MountSource, Mounter, emulated, kernel};

// === impl Mounter ===

impl Mounter {
    pub(crate) fn source_at(self, target: &Path) -> Result<Option<MountSource>, Error> {
        match self {
            Self::Emulated => emulated::source_at(target),
            Self::Kernel => kernel::source_at(target),
        }
    }

    /// The mount source of a disk's filesystem.
    pub(crate) fn files_of(self, disk: &Disk) -> Result<MountSource, Error> {
        Ok(match self {
            Self::Emulated => MountSource::Link(disk.tree.clone()),
            Self::Kernel => MountSource::Device(kernel::number(&disk.device)?),
        })
    }

    /// The mount source of a raw block device.
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

    /// Unmounts the driver's mounts at `path`, or removes its link. Keeps the path of a mount.
    pub(crate) fn unmount(self, path: &Path, is_ours: impl Fn(&MountSource) -> bool) -> Result<(), Error> {
        match self {
            Self::Emulated => emulated::unlink(path, is_ours),
            Self::Kernel => kernel::unmount(path, is_ours),
        }
    }
}
