//! Overlays: backend faults that change what the array shows, as long as they are in force.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use wildmatch::WildMatch;

use super::Faults;

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
    /// What was changed since the backend fault began: it was restored from a backup of that time, or its write cache
    /// had no battery.
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

/// How ListVolumes answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListOverlay {
    pub(crate) is_frozen: bool,
    /// Volumes to leave out.
    pub(crate) lacks: Vec<VolumeNodePattern>,
    /// Volumes to put on a node.
    pub(crate) adds: Vec<(VolumeNodePattern, String)>,
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

// === impl Faults ===

impl Faults {
    /// How ListVolumes answers.
    pub(crate) fn listing(&self) -> ListOverlay {
        let mut view = ListOverlay::default();
        self.first_overlay(|overlay, _| {
            if let Overlay::ListLacks(pattern) = overlay {
                view.lacks.push(pattern.clone());
            } else if let Overlay::ListAdds(pattern, node) = overlay {
                view.adds.push((pattern.clone(), node.clone()));
            } else if let Overlay::FrozenList(_) = overlay {
                view.is_frozen = true;
            }
            None::<()>
        });
        view
    }

    /// Which device shows up on a node for a volume: the first backend fault for it decides.
    pub fn device(&self, volume: &str, node: &str) -> DeviceOverlay {
        let found = self.first_overlay(|overlay, _| {
            let Overlay::Device(pattern, device) = overlay else {
                return None;
            };
            pattern.matches(volume, node).then(|| device.clone())
        });
        found.unwrap_or(DeviceOverlay::Right)
    }

    /// What staging finds on a volume's device on a node: the first backend fault for it decides.
    pub fn disk(&self, volume: &str, node: &str) -> DiskOverlay {
        let found = self.first_overlay(|overlay, _| {
            let Overlay::Disk(pattern, disk) = overlay else {
                return None;
            };
            pattern.matches(volume, node).then_some(*disk)
        });
        found.unwrap_or(DiskOverlay::Right)
    }

    /// Whether Probe answers that the driver is ready.
    pub(crate) fn is_ready(&self) -> bool {
        let now = self.began.elapsed();
        let fault = self.first_overlay(|overlay, since| {
            let Overlay::NotReady(period) = overlay else {
                return None;
            };
            period.is_none_or(|period| now < since + period).then_some(())
        });
        fault.is_none()
    }

    /// The state loss to apply on restart; changes with the active faults.
    pub(crate) fn loss(&self) -> watch::Receiver<Option<Loss>> {
        self.loss.subscribe()
    }

    /// The stale view that ListVolumes returns; none while the list is current.
    pub(crate) fn frozen(&self) -> Arc<RwLock<Option<Freeze>>> {
        self.frozen.clone()
    }
}
