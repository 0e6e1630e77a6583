//! Who on this machine uses a disk.

use std::path::{Path, PathBuf};

use super::{Devices, Error, Kind, loopback};

// === impl Devices ===

impl Devices {
    /// Another device of the same disk whose filesystem is mounted, by whomever on this machine, if one of the
    /// two can be written to.
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

    /// Whether any device on this machine is made of a disk. Emulated ones are not known.
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
