//! What a path shows.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What a path shows, so that a volume is told from what another process has there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum MountSource {
    /// The device of that number, or the filesystem on it.
    Device(u64),
    /// What a link leads to.
    Link(PathBuf),
}
