//! Devices that a killed process left.

use std::path::{Path, PathBuf};

use super::error::Error;
use super::{Devices, Kind, PENDING, PREFIX, TargetNotes, link, loopback};
use crate::store::volume_files::FileId;

// === impl Devices ===

impl Devices {
    /// The devices that have a link, also of incomplete ones. Only those with the disk that they were set up with.
    pub(crate) fn linked(&self) -> Result<Vec<PathBuf>, Error> {
        let mut found = Vec::new();
        for serial in self.serials()? {
            let Some(file) = self.backing_file(&serial)? else {
                continue;
            };
            for prefix in [PENDING, PREFIX] {
                let device = link::read(&self.named(prefix, &serial)?)?;
                if let Some(device) = device
                    && loopback::has_backing_file(&device, file)?
                {
                    found.push(device);
                }
            }
        }
        Ok(found)
    }

    /// The loop devices of a disk in a private directory whose process has ended, whatever mount namespace it had. The kernel knows
    /// them by path, also if that was deleted.
    pub(crate) fn abandoned(&self, file_id: &FileId) -> Result<Vec<PathBuf>, Error> {
        match self.kind {
            Kind::Loop => loopback::abandoned(&file_id.disk_path()),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(Vec::new()),
        }
    }

    /// Frees a loop device unless a filesystem on it is mounted.
    pub(crate) fn free(&self, device: &Path) -> Result<(), Error> {
        match self.kind {
            Kind::Loop => loopback::free(device),
            Kind::Emulated | Kind::None | Kind::Simulated => Ok(()),
        }
    }

    /// Where this process notes its targets; `None` if it has none.
    pub(crate) fn notes(&self) -> Option<TargetNotes> {
        match self.kind {
            Kind::Loop | Kind::Emulated => Some(TargetNotes(self.location.clone())),
            Kind::None | Kind::Simulated => None,
        }
    }
}
