use std::fs;
use std::path::{Path, PathBuf};

use super::backing_file_id::BackingFileId;
use super::error::Error;
use super::link::DETACHED;
use super::{Devices, Kind, PENDING, PREFIX, TargetNotes, link, loopback};
use crate::store::volume_files::{FileId, paths_in};
use crate::store::{PathError, remove_if_exists};

// === impl Devices ===

impl Devices {
    /// The devices that have a link, also of incomplete ones. Only those with the disk that they were set up with.
    pub(crate) fn linked(&self) -> Result<Vec<PathBuf>, Error> {
        let mut found = Vec::new();
        let noted = self.noted_detached()?.into_iter();
        let noted = noted.map(|(_, device, file)| (device, file));
        for (device, file) in self.recorded()?.into_iter().chain(noted) {
            if loopback::has_backing_file(&device, file)? {
                found.push(device);
            }
        }
        Ok(found)
    }

    /// The devices that have a link, also of incomplete ones, with the files that they were set up with.
    fn recorded(&self) -> Result<Vec<(PathBuf, BackingFileId)>, Error> {
        let mut found = Vec::new();
        for serial in self.serials()? {
            let Some(file) = self.backing_file(&serial)? else {
                continue;
            };
            for prefix in [PENDING, PREFIX] {
                let device = link::read(&self.named(prefix, &serial)?)?;
                found.extend(device.map(|device| (device, file)));
            }
        }
        Ok(found)
    }

    /// Detaches a loop device. While something is mounted from it, the kernel keeps it. `record`, the link that names its backing
    /// file, becomes a note until the device is free. It is renamed, as a full disk has no room for a new one.
    pub(super) fn detach_loop(&self, device: &Path, record: &Path) -> Result<(), Error> {
        let note = self.note_of(device)?;
        fs::rename(record, &note).map_err(PathError::of("rename", record))?;
        if let Err(error) = loopback::detach(device) {
            fs::rename(&note, record).map_err(PathError::of("rename", &note))?;
            return Err(error);
        }
        if !loopback::has_file(device) {
            remove_if_exists(&note)?;
        }
        Ok(())
    }

    /// Completes detaching, after a crash, and removes the notes of loop devices that the kernel has freed, also of those set up
    /// again since.
    pub(super) fn forget_freed(&self) -> Result<(), Error> {
        let _changing = crate::lock(&self.changes);
        let recorded = self.recorded()?;
        for (note, device, file) in self.noted_detached()? {
            if recorded.contains(&(device.clone(), file)) {
                remove_if_exists(&note)?;
                continue;
            }
            if loopback::has_backing_file(&device, file)? {
                loopback::detach(&device)?;
            }
            if !loopback::has_backing_file(&device, file)? {
                remove_if_exists(&note)?;
            }
        }
        Ok(())
    }

    /// Removes the note of a loop device that was detached, freed, and then set up again.
    pub(super) fn forget_detached(&self, device: &Path) -> Result<(), Error> {
        Ok(remove_if_exists(&self.note_of(device)?)?)
    }

    fn note_of(&self, device: &Path) -> Result<PathBuf, Error> {
        let name = device.file_name().unwrap_or_default().to_string_lossy();
        self.named(DETACHED, &name)
    }

    /// The notes of detached loop devices, with the devices and their files.
    fn noted_detached(&self) -> Result<Vec<(PathBuf, PathBuf, BackingFileId)>, Error> {
        let mut found = Vec::new();
        for note in paths_in(&self.directory()?)? {
            let name = note.file_name().unwrap_or_default().to_string_lossy();
            let Some(device) = name.strip_prefix(DETACHED) else {
                continue;
            };
            let device = Path::new("/dev").join(device);
            let file = link::read(&note)?.and_then(|text| text.to_str()?.parse().ok());
            found.extend(file.map(|file| (note, device, file)));
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

    /// Whether there may be devices, also of an earlier process that had another kind.
    pub(super) fn may_exist(&self) -> bool {
        match self.kind {
            Kind::Loop | Kind::Emulated => true,
            Kind::None => self.is_locked(),
            Kind::Simulated => false,
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
