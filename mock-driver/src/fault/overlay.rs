//! Overlays: backend faults that change what the array shows, as long as they are in force.

use std::sync::{Arc, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use wildmatch::WildMatch;

use super::Faults;

/// What is wrong with the array. Patterns that are absent mean all.
#[derive(Clone, Debug)]
pub(crate) enum Overlay {
    Device(Scope, DeviceOverlay),
    Disk(Scope, DiskOverlay),
    /// ListVolumes answers the state of so long ago, or of when the fault began.
    FrozenList(Option<Duration>),
    ListLacks(Scope),
    /// ListVolumes says that volumes are published on this node.
    ListAdds(Scope, String),
    StateLoss(Loses),
    /// Probe answers that the driver is not ready, for a time or as long as the fault lasts.
    NotReady(Option<Duration>),
}

/// What an array has lost when it comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loses {
    /// What was changed since the backend fault began: it was restored from a backup of that time, or its write cache
    /// had no battery.
    Changes,
    /// All attachments: its export table is empty.
    Attachments,
    /// Everything: it was set up anew.
    Everything,
}

/// Volumes and nodes by pattern.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    pub(super) volume: Option<WildMatch>,
    pub(super) node: Option<WildMatch>,
}

/// A listing that is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freeze {
    /// When it began, which tells it from others.
    pub(crate) since: Duration,
    /// How far it is behind; none if it stays as it was when it began.
    pub(crate) age: Option<Duration>,
}

/// What an array has lost when it comes back the next time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loss {
    /// When the backend fault began, which tells it from others.
    pub since: Duration,
    /// What is lost.
    pub loses: Loses,
}

/// How ListVolumes answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListOverlay {
    pub(crate) is_frozen: bool,
    /// Volumes to leave out.
    pub(crate) lacks: Vec<Scope>,
    /// Volumes to put on a node.
    pub(crate) adds: Vec<(Scope, String)>,
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

// === impl Scope ===

impl Scope {
    /// Whether a volume and a node are meant.
    pub(crate) fn has(&self, volume: &str, node: &str) -> bool {
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
            if let Overlay::ListLacks(scope) = overlay {
                view.lacks.push(scope.clone());
            } else if let Overlay::ListAdds(scope, node) = overlay {
                view.adds.push((scope.clone(), node.clone()));
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
            let Overlay::Device(scope, device) = overlay else {
                return None;
            };
            scope.has(volume, node).then(|| device.clone())
        });
        found.unwrap_or(DeviceOverlay::Right)
    }

    /// What staging finds on a volume's device on a node: the first backend fault for it decides.
    pub fn disk(&self, volume: &str, node: &str) -> DiskOverlay {
        let found = self.first_overlay(|overlay, _| {
            let Overlay::Disk(scope, disk) = overlay else {
                return None;
            };
            scope.has(volume, node).then_some(*disk)
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

    /// What the array is to have lost when it comes back, as it is at any time.
    pub(crate) fn loss(&self) -> watch::Receiver<Option<Loss>> {
        self.loss.subscribe()
    }

    /// Which past the listing shows, as it is at any time; none while it shows the present.
    pub(crate) fn frozen(&self) -> Arc<RwLock<Option<Freeze>>> {
        self.frozen.clone()
    }
}
