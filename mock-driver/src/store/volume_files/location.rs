//! The directory of the volume files.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Mutex;

use tempfile::TempDir;

use super::VolumeFiles;
use crate::store::PathError;

#[derive(Debug)]
pub(super) enum FilesLocation {
    Persistent {
        directory: PathBuf,
        /// Held by the process that has the array.
        lock: Mutex<Option<File>>,
    },
    Private(Mutex<PrivateDir>),
    Nowhere,
}

#[derive(Debug)]
pub(super) enum PrivateDir {
    Unused,
    Made(TempDir),
    Closed,
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
            FilesLocation::Private(private) => {
                let mut private = crate::lock(private);
                match &*private {
                    PrivateDir::Made(made) => Ok(made.path().to_owned()),
                    PrivateDir::Closed => Err(PathError {
                        act: "use the directory of a driver that has ended:",
                        path: PathBuf::from("volume files"),
                        source: ErrorKind::NotFound.into(),
                    }),
                    PrivateDir::Unused => {
                        let made = tempfile::Builder::new()
                            .prefix("csi-mock-driver-")
                            .permissions(Permissions::from_mode(0o700))
                            .tempdir()
                            .map_err(PathError::of("create a directory in", &std::env::temp_dir()))?;
                        let path = made.path().to_owned();
                        *private = PrivateDir::Made(made);
                        Ok(path)
                    }
                }
            }
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
        match std::mem::replace(&mut *private, PrivateDir::Closed) {
            PrivateDir::Made(made) => {
                let path = made.path().to_owned();
                made.close().map_err(PathError::of("remove", &path))
            }
            PrivateDir::Unused | PrivateDir::Closed => Ok(()),
        }
    }
}
