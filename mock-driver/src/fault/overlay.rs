//! Changes of a backend fault to the array's reports.

use std::time::Duration;

use super::pattern::Pattern;

/// A change of a backend fault to the array's reports. An absent pattern matches all.
#[derive(Clone, Debug)]
pub(crate) enum Overlay {
    Device(VolumeNodePattern, DeviceFault),
    Disk(VolumeNodePattern, DiskFault),
    /// ListVolumes returns the state of this long ago, or of the fault's start.
    FrozenList(Option<Duration>),
    ListLacks(VolumeNodePattern),
    /// ListVolumes reports volumes on this node.
    ListAdds(VolumeNodePattern, String),
    /// Probe reports not ready, for a time or as long as the fault lasts.
    NotReady(Option<Duration>),
}

#[derive(Clone, Debug)]
pub(crate) struct VolumeNodePattern {
    volume: Option<Pattern>,
    node: Option<Pattern>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StaleList {
    /// Its start, which identifies it.
    pub(crate) since: Duration,
    /// Its age; `None` if it is frozen at its start.
    pub(crate) age: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceFault {
    /// It does not appear.
    Absent,
    /// It belongs to another volume; the publish context has this path.
    Wrong(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Filesystem errors that fsck leaves uncorrected.
    Damaged,
    /// Foreign data of this kind.
    Foreign(&'static str),
}

// === impl VolumeNodePattern ===

impl VolumeNodePattern {
    pub(super) fn new(volume: Option<Pattern>, node: Option<Pattern>) -> Self {
        Self { volume, node }
    }

    pub(crate) fn matches(&self, volume: &str, node: &str) -> bool {
        let matches = |pattern: &Option<Pattern>, text: &str| {
            pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
        };
        matches(&self.volume, volume) && matches(&self.node, node)
    }
}
