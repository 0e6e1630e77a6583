use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::PathError;
use crate::array;

/// An operation failed, or its durability is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Refused(#[from] array::Error),
    /// The change may not be durable, so it is not confirmed. The driver exits.
    #[error("the state directory cannot be written, so nothing is confirmed any more")]
    Lost(#[source] Arc<io::Error>),
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("--state-dir")]
    Path(#[from] PathError),
    #[error("--state-dir: {} is in use by another running driver: give each its own", path.display())]
    InUse { path: PathBuf },
    #[error("--state-dir: {} {reason}: restore the directory or start with an empty one", path.display())]
    Damaged { path: PathBuf, reason: String },
}
