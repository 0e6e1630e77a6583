//! Kubelet's volume manager as a pure state machine: desired and actual state of world, and the reconciler that
//! starts operations, each in a module of its own.
//!
//! Invariants: a volume that is not known as attached is mounted only after the API server has stored it in this node's
//! `volumesInUse`, and then in `volumesAttached`; it leaves `volumesInUse` only after it was unmounted from all pods and unstaged.

mod actual_state_of_world;
mod desired_state_of_world;
mod queries;
mod reconciler;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::mount_spec::MountSpec;
use crate::nestedpendingoperations::{NestedPendingOperations, OperationKey};
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
    /// Uncertain, and found in the pod's directory after a restart. A failed mount call does not prove that it is unmounted.
    Reconstructed,
}

/// The state of one node's volumes.
#[derive(Debug, Default)]
pub(crate) struct VolumeManager {
    desired: BTreeMap<UniqueVolumeName, VolumeToMount>,
    /// The desired volumes of each pod, with their names in the pod.
    desired_of_pod: BTreeMap<String, BTreeMap<UniqueVolumeName, String>>,
    actual: BTreeMap<UniqueVolumeName, AttachedVolume>,
    pending: NestedPendingOperations,
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
    /// Found on the disk after a restart: as long as the volume is known, a failed stage does not prove that it is unstaged.
    is_reconstructed: bool,
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

#[cfg(test)]
mod tests;
