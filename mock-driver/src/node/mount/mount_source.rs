//! Mount sources.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The source of a mount at a path, to distinguish the volume from another process's mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MountSource {
    /// The block device with this number, or the filesystem on it.
    Device(u64),
    Link(PathBuf),
}
