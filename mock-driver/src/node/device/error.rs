//! Why there is no such device.

use std::io;
use std::path::{Path, PathBuf};

use crate::node::exec;
use crate::store::volume_files;

/// Why there is no such device.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Loop devices are required and not available.
    #[error("--devices=loop: {reason}")]
    NoLoop {
        /// Why not.
        reason: String,
    },
    /// An operation on a link or device failed.
    #[error("cannot {act} {}", path.display())]
    Io {
        /// What was tried.
        act: &'static str,
        /// On what.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A program failed.
    #[error(transparent)]
    Program(#[from] exec::Error),
    /// Other processes took every free loop device first.
    #[error("no free loop device in {tries} attempts: other processes took them")]
    Contended {
        /// Number of attempts.
        tries: usize,
    },
    /// The device found is not the volume's.
    #[error("the device at {} is not the volume's own", link.display())]
    Wrong {
        /// The link.
        link: PathBuf,
    },
    /// Another driver has the directory of the links.
    #[error("--device-dir: {} is in use by another running driver: give each driver its own", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
    },
    /// The directory of the devices.
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
