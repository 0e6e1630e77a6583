//! Other devices of a disk.

use std::path::{Path, PathBuf};

use super::{Devices, Error, Kind, loopback};

// === impl Devices ===

impl Devices {
    /// Another device of the same disk whose filesystem is mounted, if one of the
    /// two is writable.
    ///
    /// # Errors
    /// If the devices cannot be looked at.
    pub(crate) fn mounted_elsewhere(
        &self,
        device: &Path,
        disk: &Path,
        writable: bool,
    ) -> Result<Option<PathBuf>, Error> {
        match self.kind {
            Kind::Loop => loopback::mounted_elsewhere(device, disk, writable),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(None),
        }
    }

    /// Whether any loop device has the disk.
    ///
    /// # Errors
    /// If the devices cannot be looked at.
    pub(crate) fn is_in_use(&self, disk: &Path) -> Result<bool, Error> {
        match self.kind {
            Kind::Loop => loopback::has_device(disk),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(false),
        }
    }
}
