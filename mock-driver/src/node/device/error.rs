//! Errors of devices.

use std::io;
use std::path::{Path, PathBuf};

use crate::node::exec;
use crate::store::volume_files;

/// Errors of devices.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum Error {
    #[error("--devices=loop: {reason}")]
    NoLoop { reason: String },
    #[error("cannot {act} {}", path.display())]
    Io {
        act: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error(transparent)]
    Program(#[from] exec::Error),
    #[error("no free loop device in {tries} attempts: other processes took them")]
    Contended { tries: usize },
    #[error("the device at {} is not the volume's own", link.display())]
    Wrong { link: PathBuf },
    #[error("{} is in use by another running driver: give each one its own --node-id, --media-dir or --device-dir", directory.display())]
    InUse { directory: PathBuf },
    #[error(transparent)]
    VolumeFiles(#[from] volume_files::Error),
}

// === impl Error ===

impl Error {
    pub(super) fn io(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { act, path, source }
    }
}
