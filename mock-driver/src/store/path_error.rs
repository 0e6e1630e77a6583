//! I/O errors with the path of the file.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
#[error("cannot {act} {}", path.display())]
pub struct PathError {
    pub(crate) act: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

// === impl PathError ===

impl PathError {
    /// Whether the filesystem is full.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(
            self.source.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
        )
    }

    pub(crate) fn of<E: Into<io::Error>>(act: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self {
            act,
            path,
            source: source.into(),
        }
    }
}

pub(crate) fn remove_if_exists(path: &Path) -> Result<(), PathError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(PathError::of("remove", path)(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}
