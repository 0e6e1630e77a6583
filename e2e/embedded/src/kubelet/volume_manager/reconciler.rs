//! The reconciler: starts the operations that turn the actual state of world into the desired one.

use tokio::time::Instant;

use super::{MountState, Operation, VolumeManager};

// === impl VolumeManager ===

impl VolumeManager {
    /// Starts all operations that can be started now: unmounts first, then mounts, then devices.
    pub(crate) fn reconcile(&mut self, now: Instant) -> Vec<Operation> {
        let mut started = Vec::new();
        for operation in self
            .unmount_volumes()
            .into_iter()
            .chain(self.mount_volumes(now))
            .chain(self.unmount_devices())
        {
            if self
                .pending
                .start(&operation.key(), operation.name(), now)
                .is_ok()
            {
                if let Operation::MountVolume { spec, pod, .. } = &operation {
                    self.mounting.insert((spec.unique_name.clone(), pod.clone()));
                }
                started.push(operation);
            }
        }
        self.forget_detached();
        started
    }

    /// When a failed operation may be retried.
    pub(crate) fn next_retry(&self, now: Instant) -> Option<Instant> {
        self.pending.next_retry(now)
    }

    fn unmount_volumes(&self) -> Vec<Operation> {
        let is_desired = |name: &str, pod: &str| {
            self.desired
                .get(name)
                .is_some_and(|volume| volume.pods.contains(pod))
        };
        self.actual
            .iter()
            .flat_map(|(name, volume)| volume.pods.keys().map(move |pod| (name, volume, pod)))
            .filter(|(name, _, pod)| !is_desired(name, pod))
            .map(|(_, volume, pod)| Operation::UnmountVolume {
                spec: volume.spec.clone(),
                pod: pod.clone(),
            })
            .collect()
    }

    fn mount_volumes(&self, now: Instant) -> Vec<Operation> {
        let mut operations = Vec::new();
        let can_start = |name: &str, operation| {
            self.pending
                .is_operation_safe_to_retry(name, "", "", operation, now)
        };
        for (name, volume) in &self.desired {
            let Some(actual) = self.actual.get(name) else {
                if !can_start(name, Operation::VERIFY) {
                    continue;
                }
                // The attach/detach controller knows that the volume is in use only after the node has reported it. As upstream,
                // kubelet reads its Node only once the watch shows the volume in `volumesAttached`.
                let is_reported = volume.reported_in_use && self.reported_attached.contains(name);
                if !volume.spec.attachable || is_reported {
                    let spec = volume.spec.clone();
                    operations.push(Operation::VerifyControllerAttachedVolume(spec));
                }
                continue;
            };
            for pod in &volume.pods {
                if actual.pods.get(pod) != Some(&MountState::Mounted) && can_start(name, Operation::MOUNT) {
                    operations.push(Operation::MountVolume {
                        spec: volume.spec.clone(),
                        pod: pod.clone(),
                        staged: actual.device == Some(MountState::Mounted),
                    });
                }
            }
        }
        operations
    }

    fn unmount_devices(&self) -> Vec<Operation> {
        self.actual
            .iter()
            .filter(|(name, volume)| {
                volume.pods.is_empty() && volume.device.is_some() && !self.desired.contains_key(*name)
            })
            .map(|(_, volume)| Operation::UnmountDevice(volume.spec.clone()))
            .collect()
    }

    /// Removes volumes that are not mounted and that no pod needs; the attach/detach controller may detach them.
    fn forget_detached(&mut self) {
        let (desired, pending) = (&self.desired, &self.pending);
        self.actual.retain(|name, volume| {
            !volume.pods.is_empty()
                || volume.device.is_some()
                || desired.contains_key(name)
                || pending.is_operation_pending(name, "", "")
        });
    }
}
