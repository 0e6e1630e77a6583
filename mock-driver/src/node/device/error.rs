use std::path::PathBuf;

use crate::node::exec;
use crate::store::PathError;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("--devices=loop: {reason}")]
    NoLoop { reason: String },
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Program(#[from] exec::Error),
    #[error("no free loop device in {tries} attempts: other processes took them")]
    Contended { tries: usize },
    #[error("the device at {} is not the volume's own", link.display())]
    Wrong { link: PathBuf },
    #[error("{} is in use by another running driver: give each one its own --node-id, --media-dir or --device-dir", directory.display())]
    InUse { directory: PathBuf },
}
