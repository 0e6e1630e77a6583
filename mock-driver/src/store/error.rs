//! Errors of the store.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use crate::array;

/// An operation failed, or its durability is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The array refused the operation.
    #[error(transparent)]
    Refused(#[from] array::Error),
    /// The change may not be durable, so it is not confirmed. The driver exits.
    #[error("the state directory cannot be written, so nothing is confirmed any more")]
    Lost(#[source] Arc<io::Error>),
}

/// An error of a state directory.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An operation on a file or directory failed.
    #[error("--state-dir: cannot {act} {}", path.display())]
    Io {
        /// Attempted operation.
        act: &'static str,
        /// Path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another driver uses it.
    #[error("--state-dir: {} is in use by another running driver: give each its own", path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// A damaged file, or one of an unknown format.
    #[error("--state-dir: {} {reason}: restore the directory or start with an empty one", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The cause and its position.
        reason: String,
    },
}
