//! Other devices of a disk.

use std::path::{Path, PathBuf};

use super::{Devices, Error, Kind, loopback};

// === impl Devices ===

impl Devices {
    /// Another device of the disk whose filesystem is mounted, if one of the two is writable.
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

    /// The loop devices of a disk, also those without a link.
    pub(crate) fn all_of(&self, disk: &Path) -> Result<Vec<PathBuf>, Error> {
        match self.kind {
            Kind::Loop => loopback::all_of(disk),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(Vec::new()),
        }
    }
}
