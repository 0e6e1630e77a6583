//! Read-only queries of the volume manager.

use super::{MountState, VolumeManager};

// === impl VolumeManager ===

impl VolumeManager {
    /// Whether all volumes that the pod needs are mounted.
    pub(crate) fn all_mounted(&self, pod: &str) -> bool {
        let mut needed = self.desired_of_pod.get(pod).into_iter().flatten();
        needed.all(|name| self.mount_state(name, pod) == Some(MountState::Mounted))
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

    /// The pods that need the volume.
    pub(crate) fn pods_of(&self, name: &str) -> Vec<String> {
        let volumes = self.desired.get(name).into_iter();
        volumes.flat_map(|volume| volume.pods.clone()).collect()
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
