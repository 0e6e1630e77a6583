//! Errors of volume files.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Errors of volume files.
#[derive(Debug, thiserror::Error)]
#[error("cannot {act} {}", path.display())]
pub struct Error {
    pub(super) act: &'static str,
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

// === impl Error ===

impl Error {
    /// Whether the filesystem is full.
    pub(crate) fn is_no_space(&self) -> bool {
        matches!(
            self.source.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
        )
    }

    pub(super) fn of(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { act, path, source }
    }
}
