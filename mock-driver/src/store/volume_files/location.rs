use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::VolumeFiles;
use super::private::PrivateDir;
use crate::store::PathError;

#[derive(Debug)]
pub(super) enum FilesLocation {
    Persistent {
        directory: PathBuf,
        /// Held by the process that has the array.
        lock: Mutex<Option<File>>,
    },
    Private(Mutex<PrivateFiles>),
    Nowhere,
}

#[derive(Debug)]
pub(super) enum PrivateFiles {
    Unused,
    Made(PrivateDir),
    Closed,
}

// === impl PrivateFiles ===

impl PrivateFiles {
    /// The directory, which is created at its first use.
    fn made(&mut self) -> Result<&PrivateDir, PathError> {
        if matches!(self, Self::Unused) {
            *self = Self::Made(PrivateDir::create()?);
        }
        match self {
            Self::Made(made) => Ok(made),
            Self::Unused | Self::Closed => Err(PathError {
                act: "use the directory of a driver that has ended:",
                path: PathBuf::from("volume files"),
                source: ErrorKind::NotFound.into(),
            }),
        }
    }
}

// === impl VolumeFiles ===

impl VolumeFiles {
    /// The directory, created if it does not exist. It may contain other files.
    pub fn directory(&self) -> Result<PathBuf, PathError> {
        match &*self.location {
            FilesLocation::Persistent { directory, .. } => {
                // Not flushed: `claim` has created and flushed it, unless it was removed since.
                fs::create_dir_all(directory).map_err(PathError::of("create", directory))?;
                Ok(directory.clone())
            }
            FilesLocation::Nowhere => Ok(PathBuf::from("/nowhere")),
            FilesLocation::Private(private) => Ok(crate::lock(private).made()?.path().to_owned()),
        }
    }

    /// Notes what a driver without a permanent directory has elsewhere, for the next start if this process is killed: one of its
    /// [`SOCKETS`](super::SOCKETS), or a directory with links to [`DEVICES`](super::DEVICES).
    pub(crate) fn note(&self, kind: &'static str, path: &Path) -> Result<(), PathError> {
        match &*self.location {
            FilesLocation::Private(private) => crate::lock(private).made()?.note(kind, path),
            FilesLocation::Persistent { .. } | FilesLocation::Nowhere => Ok(()),
        }
    }

    /// Removes a private directory with its contents. Permanent files remain, and their directory is unlocked.
    pub(crate) fn close(&self) -> Result<(), PathError> {
        let private = match &*self.location {
            FilesLocation::Private(private) => private,
            FilesLocation::Nowhere => return Ok(()),
            FilesLocation::Persistent { lock, .. } => {
                *crate::lock(lock) = None;
                return Ok(());
            }
        };
        let mut private = crate::lock(private);
        match std::mem::replace(&mut *private, PrivateFiles::Closed) {
            PrivateFiles::Made(made) => made.remove(),
            PrivateFiles::Unused | PrivateFiles::Closed => Ok(()),
        }
    }
}
