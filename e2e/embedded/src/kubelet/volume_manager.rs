//! Kubelet's volume manager as a pure state machine: desired and actual state of world, and the reconciler that
//! starts operations.
//!
//! Invariants: a volume is mounted only after the API server has stored it in this node's `volumesInUse`, and then
//! in `volumesAttached`; it leaves `volumesInUse` only after it was unmounted from all pods and unstaged.

mod queries;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::mount_spec::MountSpec;
use crate::pending_operations::{OperationKey, PendingOperations};
use crate::volume::UniqueVolumeName;

/// An operation for kubelet to execute; its result goes to [`VolumeManager::finish`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operation {
    /// Check that the volume is in the node's `volumesAttached`.
    VerifyControllerAttachedVolume(Arc<MountSpec>),
    /// Stage the volume, unless it is staged, and publish it to the pod.
    MountVolume {
        spec: Arc<MountSpec>,
        pod: String,
        staged: bool,
    },
    /// Unpublish the volume from the pod.
    UnmountVolume { spec: Arc<MountSpec>, pod: String },
    /// Unstage the volume.
    UnmountDevice(Arc<MountSpec>),
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The volume is not attached yet; check again soon.
    NotAttachedYet,
    /// Nothing was mounted or unmounted.
    Failed,
    /// Staging failed with a final error: nothing is staged.
    NotStaged,
    /// Staging may have happened.
    StageUncertain,
    /// Staged, but kubelet could not call NodePublishVolume. An earlier call may still be in progress.
    PublishNotCalled,
    /// Staged, but publishing failed with a final error.
    NotPublished,
    /// Staged, and publishing may have happened.
    PublishUncertain,
}

/// The state of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountState {
    Mounted,
    /// A call ended without a final error.
    Uncertain,
    /// Found on the disk after a restart. A failed mount call does not prove that it is unmounted.
    Reconstructed,
}

/// The state of one node's volumes.
#[derive(Debug, Default)]
pub(crate) struct VolumeManager {
    desired: BTreeMap<UniqueVolumeName, VolumeToMount>,
    /// The desired volumes of each pod, with their names in the pod.
    desired_of_pod: BTreeMap<String, BTreeMap<UniqueVolumeName, String>>,
    actual: BTreeMap<UniqueVolumeName, AttachedVolume>,
    pending: PendingOperations,
    /// The node's `volumesAttached` in the last watch event.
    reported_attached: BTreeSet<UniqueVolumeName>,
    /// Volume and pod of the mounts that are running.
    mounting: BTreeSet<(UniqueVolumeName, String)>,
}

#[derive(Debug)]
struct VolumeToMount {
    spec: Arc<MountSpec>,
    /// The API server has stored the volume in `volumesInUse`.
    reported_in_use: bool,
    pods: BTreeSet<String>,
}

#[derive(Debug)]
struct AttachedVolume {
    spec: Arc<MountSpec>,
    device: Option<MountState>,
    pods: BTreeMap<String, MountState>,
}

// === impl Operation ===

impl Operation {
    const VERIFY: &'static str = "verify_controller_attached_volume";
    const MOUNT: &'static str = "volume_mount";

    fn name(&self) -> &'static str {
        match self {
            Self::VerifyControllerAttachedVolume(_) => Self::VERIFY,
            Self::MountVolume { .. } => Self::MOUNT,
            Self::UnmountVolume { .. } => "volume_unmount",
            Self::UnmountDevice(_) => "unmount_device",
        }
    }

    /// Only unmounts of one volume for different pods may run concurrently.
    fn key(&self) -> OperationKey {
        match self {
            Self::VerifyControllerAttachedVolume(spec)
            | Self::MountVolume { spec, .. }
            | Self::UnmountDevice(spec) => OperationKey::of_volume(&spec.unique_name),
            Self::UnmountVolume { spec, pod } => OperationKey::for_pod(&spec.unique_name, pod),
        }
    }
}

// === impl VolumeManager: desired state ===

impl VolumeManager {
    /// The pod needs the volume.
    pub(crate) fn add_pod_to_volume(&mut self, pod: &str, spec: MountSpec) {
        let name = spec.unique_name.clone();
        let of_pod = self.desired_of_pod.entry(pod.to_owned()).or_default();
        of_pod.insert(name.clone(), spec.outer_name.clone());
        self.desired
            .entry(name)
            .or_insert_with(|| VolumeToMount {
                spec: Arc::new(spec),
                reported_in_use: false,
                pods: BTreeSet::new(),
            })
            .pods
            .insert(pod.to_owned());
    }

    /// The pod needs no volume any more.
    pub(crate) fn delete_pod(&mut self, pod: &str) {
        for (name, _) in self.desired_of_pod.remove(pod).into_iter().flatten() {
            if let Entry::Occupied(mut volume) = self.desired.entry(name) {
                volume.get_mut().pods.remove(pod);
                if volume.get().pods.is_empty() {
                    volume.remove();
                }
            }
        }
    }

    /// `volumesInUse`: desired volumes, and volumes that are not yet unstaged.
    pub(crate) fn volumes_in_use(&self) -> BTreeSet<&str> {
        let desired = self.desired.values().map(|volume| &volume.spec);
        desired
            .chain(self.actual.values().map(|volume| &volume.spec))
            .filter(|spec| spec.attachable)
            .map(|spec| spec.unique_name.as_str())
            .collect()
    }

    /// The API server stored this `volumesInUse`.
    pub(crate) fn mark_volumes_as_reported_in_use(&mut self, stored: &BTreeSet<UniqueVolumeName>) {
        for (name, volume) in &mut self.desired {
            volume.reported_in_use = stored.contains(name);
        }
    }

    /// The node's watch has reported this `volumesAttached`: volumes that are new in it skip their backoff.
    pub(crate) fn mark_volumes_as_reported_attached(&mut self, attached: BTreeSet<UniqueVolumeName>) {
        for name in attached.difference(&self.reported_attached) {
            self.pending
                .forget_backoff(&OperationKey::of_volume(name), Operation::VERIFY);
        }
        self.reported_attached = attached;
    }
}

// === impl VolumeManager: actual state ===

impl VolumeManager {
    /// A mount was found on the node after a restart.
    pub(crate) fn add_reconstructed(&mut self, spec: MountSpec, pod: Option<&str>) {
        let volume = self
            .actual
            .entry(spec.unique_name.clone())
            .or_insert_with(|| AttachedVolume {
                spec: Arc::new(spec),
                device: None,
                pods: BTreeMap::new(),
            });
        match pod {
            Some(pod) => {
                volume.pods.insert(pod.to_owned(), MountState::Reconstructed);
            }
            None => volume.device = Some(MountState::Reconstructed),
        }
    }

    /// Handles the result of an operation.
    pub(crate) fn finish(&mut self, operation: &Operation, outcome: Outcome, now: Instant) {
        let key = operation.key();
        if outcome == Outcome::NotAttachedYet && self.reported_attached.contains(&key.volume) {
            self.pending.finish_without_backoff_growth(&key, now);
            return;
        }
        self.pending.finish(&key, outcome == Outcome::Done, now);
        match operation {
            Operation::VerifyControllerAttachedVolume(spec) => self.verified(&spec.unique_name, outcome),
            Operation::MountVolume { spec, pod, .. } => {
                self.mounting.remove(&(spec.unique_name.clone(), pod.clone()));
                self.mounted(&spec.unique_name, pod, outcome);
            }
            Operation::UnmountVolume { spec, pod } => {
                if let Some(volume) = self.actual.get_mut(&spec.unique_name) {
                    if outcome == Outcome::Done {
                        volume.pods.remove(pod);
                    } else {
                        volume.pods.insert(pod.clone(), MountState::Uncertain);
                    }
                }
            }
            Operation::UnmountDevice(spec) => {
                if let Some(volume) = self.actual.get_mut(&spec.unique_name) {
                    volume.device = (outcome != Outcome::Done).then_some(MountState::Uncertain);
                }
            }
        }
    }

    fn verified(&mut self, name: &str, outcome: Outcome) {
        if let (Outcome::Done, Some(desired)) = (outcome, self.desired.get(name)) {
            let attached = || AttachedVolume {
                spec: desired.spec.clone(),
                device: None,
                pods: BTreeMap::new(),
            };
            self.actual.entry(name.to_owned()).or_insert_with(attached);
        }
    }

    fn mounted(&mut self, name: &str, pod: &str, outcome: Outcome) {
        let Some(volume) = self.actual.get_mut(name) else {
            return;
        };
        match outcome {
            Outcome::Done | Outcome::PublishNotCalled | Outcome::NotPublished | Outcome::PublishUncertain => {
                // Inline volumes have no staging directory.
                volume.device = (!volume.spec.ephemeral).then_some(MountState::Mounted);
            }
            Outcome::StageUncertain if volume.device != Some(MountState::Reconstructed) => {
                volume.device = Some(MountState::Uncertain);
            }
            // A final error after an uncertain one proves that the volume is not staged.
            Outcome::NotStaged => {
                if volume.device == Some(MountState::Uncertain) {
                    volume.device = None;
                }
            }
            Outcome::StageUncertain | Outcome::Failed | Outcome::NotAttachedYet => {}
        }
        let reconstructed = volume.pods.get(pod) == Some(&MountState::Reconstructed);
        match outcome {
            Outcome::Done => {
                volume.pods.insert(pod.to_owned(), MountState::Mounted);
            }
            Outcome::PublishUncertain if !reconstructed => {
                volume.pods.insert(pod.to_owned(), MountState::Uncertain);
            }
            Outcome::NotPublished if !reconstructed => {
                volume.pods.remove(pod);
            }
            Outcome::PublishUncertain
            | Outcome::NotPublished
            | Outcome::PublishNotCalled
            | Outcome::NotStaged
            | Outcome::StageUncertain
            | Outcome::Failed
            | Outcome::NotAttachedYet => {}
        }
    }
}

// === impl VolumeManager: reconciler ===

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
                // The attach/detach controller knows that the volume is in use only after the node has reported it. Unlike
                // upstream, kubelet reads its Node only once the watch shows the volume in `volumesAttached`.
                let is_reported = volume.reported_in_use && self.reported_attached.contains(name);
                if !volume.spec.attachable || is_reported {
                    let spec = volume.spec.clone();
                    operations.push(Operation::VerifyControllerAttachedVolume(spec));
                }
                continue;
            };
            if volume.spec.attachable && !volume.reported_in_use {
                continue;
            }
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

#[cfg(test)]
mod tests;
