//! The directory that media lie in.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use tempfile::TempDir;

use super::{Error, Media};

#[derive(Debug)]
pub(super) enum Place {
    Kept {
        directory: PathBuf,
        /// Held by the process that has the array.
        lock: Mutex<Option<File>>,
    },
    Private(Mutex<Private>),
    Nowhere,
}

#[derive(Debug)]
pub(super) enum Private {
    Unused,
    Made(TempDir),
    Closed,
}

// === impl Media ===

impl Media {
    /// The directory, made if it is not there yet. Others may keep things beside the media in it.
    ///
    /// # Errors
    /// If it cannot be made, or is closed.
    pub fn directory(&self) -> Result<PathBuf, Error> {
        match &*self.place {
            Place::Kept { directory, .. } => {
                fs::create_dir_all(directory).map_err(Error::of("create", directory))?;
                Ok(directory.clone())
            }
            Place::Nowhere => Ok(PathBuf::from("/nowhere")),
            Place::Private(private) => {
                let mut private = private.lock().unwrap_or_else(PoisonError::into_inner);
                match &*private {
                    Private::Made(made) => Ok(made.path().to_owned()),
                    Private::Closed => Err(Error {
                        act: "use the directory of a driver that has ended:",
                        path: PathBuf::from("media"),
                        source: ErrorKind::NotFound.into(),
                    }),
                    Private::Unused => {
                        let made = tempfile::Builder::new()
                            .prefix("csi-mock-driver-")
                            .permissions(Permissions::from_mode(0o700))
                            .tempdir()
                            .map_err(Error::of("create a directory in", &std::env::temp_dir()))?;
                        let path = made.path().to_owned();
                        *private = Private::Made(made);
                        Ok(path)
                    }
                }
            }
        }
    }

    /// Removes the private directory with everything in it. Kept media stay, and their directory is unlocked.
    ///
    /// # Errors
    /// If something in it cannot be removed.
    pub fn close(&self) -> Result<(), Error> {
        let private = match &*self.place {
            Place::Private(private) => private,
            Place::Nowhere => return Ok(()),
            Place::Kept { lock, .. } => {
                *lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
                return Ok(());
            }
        };
        let mut private = private.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *private, Private::Closed) {
            Private::Made(made) => {
                let path = made.path().to_owned();
                made.close().map_err(Error::of("remove", &path))
            }
            Private::Unused | Private::Closed => Ok(()),
        }
    }
}
