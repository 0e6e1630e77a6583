//! A volume's disk.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// The file with the volume's data.
    pub(crate) file: PathBuf,
    /// The directory that emulates the mounted filesystem.
    pub(crate) tree: PathBuf,
    /// The mark that the disk is being formatted.
    pub(crate) formatting: PathBuf,
    pub(crate) device: PathBuf,
    /// The open device, which keeps its path from being reused for another disk. `None` if the file itself is the device.
    pub(crate) _held: Option<Arc<File>>,
    pub(crate) writable: bool,
}
