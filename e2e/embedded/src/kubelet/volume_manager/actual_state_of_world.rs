//! The actual state of world: the results of operations, and what was found on the disk.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::{AttachedVolume, MountState, Operation, Outcome, VolumeManager};
use crate::kubelet::mount_spec::MountSpec;

// === impl VolumeManager ===

impl VolumeManager {
    /// A mount was found on the node after a restart. A volume that is mounted for a pod may be staged.
    pub(crate) fn add_reconstructed(&mut self, spec: MountSpec, pod: Option<&str>) {
        let device = (!spec.ephemeral).then_some(MountState::Uncertain);
        let volume = self
            .actual
            .entry(spec.unique_name.clone())
            .or_insert_with(|| AttachedVolume {
                spec: Arc::new(spec),
                device,
                is_reconstructed: true,
                pods: BTreeMap::new(),
            });
        if let Some(pod) = pod {
            volume.pods.insert(pod.to_owned(), MountState::Reconstructed);
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
                    } else if volume.pods.get(pod) != Some(&MountState::Reconstructed) {
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
                is_reconstructed: false,
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
            Outcome::StageUncertain => volume.device = Some(MountState::Uncertain),
            // A final error after an uncertain one proves that the volume is not staged.
            Outcome::NotStaged
                if volume.device == Some(MountState::Uncertain) && !volume.is_reconstructed =>
            {
                volume.device = None;
            }
            Outcome::NotStaged | Outcome::Failed | Outcome::NotAttachedYet => {}
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
