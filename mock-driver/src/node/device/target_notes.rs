//! Notes of the targets at which a process without a state directory has published volumes: links beside those to the devices.
//! The next start undoes what is at these targets if the process is killed.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::DeviceLocation;
use crate::store::volume_files::{file_name, paths_in};
use crate::store::{PathError, remove_if_exists};

pub(super) const TARGET: &str = ".target-csi-mock-";

#[derive(Debug)]
pub(crate) struct TargetNotes(pub(super) DeviceLocation);

// === impl TargetNotes ===

impl TargetNotes {
    /// Notes a target before anything is there.
    pub(crate) fn add(&self, target: &str) -> Result<(), PathError> {
        let note = self.0.directory()?.join(name(target));
        match symlink(target, &note) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(PathError::of("link", &note)(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Removes the note of a target, at which nothing is any more.
    pub(crate) fn remove(&self, target: &str) -> Result<(), PathError> {
        remove_note(&self.0.directory()?, Path::new(target))
    }
}

pub(crate) fn noted_in(directory: &Path) -> Result<Vec<PathBuf>, PathError> {
    let mut targets = Vec::new();
    for path in paths_in(directory)? {
        let name = path.file_name().unwrap_or_default();
        if name.as_encoded_bytes().starts_with(TARGET.as_bytes()) {
            targets.push(fs::read_link(&path).map_err(PathError::of("read the link", &path))?);
        }
    }
    Ok(targets)
}

pub(crate) fn remove_note(directory: &Path, target: &Path) -> Result<(), PathError> {
    let note = directory.join(name(&target.to_string_lossy()));
    remove_if_exists(&note)
}

fn name(target: &str) -> String {
    format!("{TARGET}{}", file_name(target))
}
