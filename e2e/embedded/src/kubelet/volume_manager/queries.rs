//! Read-only queries of the volume manager.

use std::sync::Arc;

use super::{MountState, VolumeManager};
use crate::kubelet::mount_spec::MountSpec;

// === impl VolumeManager ===

impl VolumeManager {
    /// Whether all volumes that the pod needs are mounted.
    pub(crate) fn all_mounted(&self, pod: &str) -> bool {
        let mut needed = self.desired_of_pod.get(pod).into_iter().flatten();
        needed.all(|(name, _)| self.mount_state(name, pod) == Some(MountState::Mounted))
    }

    /// Whether the volume is or may be mounted for another pod.
    pub(crate) fn is_mounted_elsewhere(&self, name: &str, pod: &str) -> bool {
        let pods = self.actual.get(name).map(|volume| &volume.pods);
        pods.is_some_and(|pods| pods.keys().any(|other| other != pod))
    }

    /// Whether a volume is, may be or is about to be mounted for the pod.
    pub(crate) fn has_mounts(&self, pod: &str) -> bool {
        self.actual.values().any(|volume| volume.pods.contains_key(pod))
            || self.mounting.iter().any(|(_, mounting)| mounting == pod)
    }

    /// The volumes that the pod needs and that the attach/detach controller has not attached.
    pub(crate) fn unattached(&self, pod: &str) -> Vec<Arc<MountSpec>> {
        let needed = self.desired_of_pod.get(pod).into_iter().flatten();
        let unattached = needed.filter(|(name, _)| !self.actual.contains_key(*name));
        let specs = unattached.filter_map(|(name, _)| self.desired.get(name));
        let specs = specs.map(|volume| volume.spec.clone());
        specs.filter(|spec| spec.attachable).collect()
    }

    /// The pod's names of the volumes that are not mounted, and of those among them that are not attached.
    pub(crate) fn unmounted(&self, pod: &str) -> [Vec<&str>; 2] {
        let is_mounted = |name: &str| self.mount_state(name, pod) == Some(MountState::Mounted);
        let names = |is_wanted: &dyn Fn(&str) -> bool| {
            let needed = self.desired_of_pod.get(pod).into_iter().flatten();
            let wanted = needed.filter(|(name, _)| is_wanted(name));
            let mut names: Vec<_> = wanted.map(|(_, outer_name)| outer_name.as_str()).collect();
            names.sort_unstable();
            names
        };
        [
            names(&|name| !is_mounted(name)),
            names(&|name| !self.actual.contains_key(name)),
        ]
    }

    /// Whether the volume is or may be staged.
    pub(crate) fn may_be_staged(&self, name: &str) -> bool {
        self.actual
            .get(name)
            .is_some_and(|volume| volume.device.is_some())
    }

    /// The state of the volume's mount for the pod; `None` if it is certainly not mounted.
    pub(crate) fn mount_state(&self, name: &str, pod: &str) -> Option<MountState> {
        self.actual.get(name)?.pods.get(pod).copied()
    }
}
