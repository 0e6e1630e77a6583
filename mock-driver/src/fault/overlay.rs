//! What a backend fault changes in the array's reports.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use wildmatch::WildMatch;

/// What a backend fault changes in the array's reports. An absent pattern matches all.
#[derive(Clone, Debug)]
pub(crate) enum Overlay {
    Device(VolumeNodePattern, DeviceOverlay),
    Disk(VolumeNodePattern, DiskOverlay),
    /// ListVolumes returns the state of this long ago, or of the fault's start.
    FrozenList(Option<Duration>),
    ListLacks(VolumeNodePattern),
    /// ListVolumes says that volumes are published on this node.
    ListAdds(VolumeNodePattern, String),
    StateLoss(Loses),
    /// Probe answers that the driver is not ready, for a time or as long as the fault lasts.
    NotReady(Option<Duration>),
}

/// What the array loses on restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loses {
    /// Changes since the backend fault began (restore from a backup, or loss of the write cache).
    Changes,
    /// All attachments: its export table is empty.
    Attachments,
    /// Everything, as at the first start.
    Everything,
}

/// Volumes and nodes by pattern.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeNodePattern {
    pub(super) volume: Option<WildMatch>,
    pub(super) node: Option<WildMatch>,
}

/// A listing that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freeze {
    /// When it began, which identifies it.
    pub(crate) since: Duration,
    /// How far it is behind; none if it stays as it was when it began.
    pub(crate) age: Option<Duration>,
}

/// What the array loses on restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When the backend fault began, which identifies it.
    pub since: Duration,
    /// What is lost.
    pub loses: Loses,
}

/// The device that shows up for an attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceOverlay {
    /// The right one.
    Right,
    /// None.
    Absent,
    /// Another one, by its path.
    Wrong(String),
}

/// What staging finds on the device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOverlay {
    /// What is there.
    Right,
    /// A filesystem with errors.
    Dirty,
    /// A filesystem with errors that are not repaired without asking.
    Damaged,
    /// Foreign data, and what it looks like.
    Foreign(&'static str),
}

// === impl VolumeNodePattern ===

impl VolumeNodePattern {
    /// Both patterns match.
    pub(crate) fn matches(&self, volume: &str, node: &str) -> bool {
        let fits = |pattern: &Option<WildMatch>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
        };
        fits(&self.volume, volume) && fits(&self.node, node)
    }
}
