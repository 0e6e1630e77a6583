//! A volume's disk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

/// The disk of a volume as the node has it.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// What holds the bytes.
    pub(crate) file: PathBuf,
    /// The files that stand for the filesystem where none can be mounted.
    pub(crate) tree: PathBuf,
    /// The mark that the disk is being formatted.
    pub(crate) formatting: PathBuf,
    pub(crate) device: PathBuf,
    /// The device kept open, so that its path leads to no other disk as long as this lives. None for a file
    /// that stands for a device.
    pub(crate) _held: Option<Arc<File>>,
    /// Whether it may be written to.
    pub(crate) writable: bool,
}
