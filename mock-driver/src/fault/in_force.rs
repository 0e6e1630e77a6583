//! Reports of the array under active overlays.

use super::overlay::{DeviceFault, DiskFault, Overlay, VolumeNodePattern};
use super::{Faults, overlays};

#[derive(Clone, Debug, Default)]
pub(crate) struct ListOverlay {
    pub(crate) is_frozen: bool,
    pub(crate) lacks: Vec<VolumeNodePattern>,
    /// Volumes reported on a wrong node.
    pub(crate) adds: Vec<(VolumeNodePattern, String)>,
}

// === impl Faults ===

impl Faults {
    pub(crate) fn listing(&self) -> ListOverlay {
        let mut view = ListOverlay::default();
        for (overlay, _) in overlays(&self.rules()) {
            if let Overlay::ListLacks(pattern) = overlay {
                view.lacks.push(pattern.clone());
            } else if let Overlay::ListAdds(pattern, node) = overlay {
                view.adds.push((pattern.clone(), node.clone()));
            } else if let Overlay::FrozenList(_) = overlay {
                view.is_frozen = true;
            }
        }
        view
    }

    /// The fault of a volume's device on a node, according to the first matching backend fault.
    pub fn device(&self, volume: &str, node: &str) -> Option<DeviceFault> {
        overlays(&self.rules()).find_map(|(overlay, _)| {
            let Overlay::Device(pattern, fault) = overlay else {
                return None;
            };
            pattern.matches(volume, node).then(|| fault.clone())
        })
    }

    /// The fault of a disk's content on a node, according to the first matching backend fault.
    pub fn disk(&self, volume: &str, node: &str) -> Option<DiskFault> {
        overlays(&self.rules()).find_map(|(overlay, _)| {
            let Overlay::Disk(pattern, fault) = overlay else {
                return None;
            };
            pattern.matches(volume, node).then_some(*fault)
        })
    }

    pub(crate) fn is_ready(&self) -> bool {
        let now = self.began.elapsed();
        !overlays(&self.rules()).any(|(overlay, since)| {
            matches!(overlay, Overlay::NotReady(period) if period.is_none_or(|period| now < since + period))
        })
    }
}
