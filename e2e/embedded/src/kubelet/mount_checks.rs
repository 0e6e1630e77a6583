//! Kubelet's checks before a mount (node affinity, ReadWriteOncePod), and the rejection of pods that exceed the
//! attach limit.

use futures::FutureExt;

use super::csi_mounter::Finished;
use super::mount_spec::MountSpec;
use super::volume_manager::Outcome;
use super::{Kubelet, Report};
use crate::event_recorder::EventType;
use crate::node_selector;

// === impl Kubelet ===

impl Kubelet {
    /// The failure of a mount that must not start.
    pub(super) fn refuse_mount(&self, spec: &MountSpec, pod: &str) -> Option<Finished> {
        let failed = |step, error| Some(Finished::failed(Outcome::Failed, step, spec, error));
        let affinity = spec.node_affinity.as_ref();
        if affinity.is_some_and(|required| !node_selector::matches(required, &self.node)) {
            return failed("MountVolume.NodeAffinity check", "no matching NodeSelectorTerms");
        }
        if spec.access_modes == ["ReadWriteOncePod"]
            && self.volumes.is_mounted_elsewhere(&spec.unique_name, pod)
        {
            let error = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            return failed("MountVolume.SetUp", error);
        }
        None
    }

    /// The node is at its attach limit, although its CSINode allows more: the pods fail, so that their controllers
    /// create new ones, and kubelet reads the limit again.
    pub(super) fn reject_pods(&mut self, volume: &str) {
        const REASON: &str = "VolumeAttachmentLimitExceeded";
        const MESSAGE: &str = "Volume attachment limit exceeded";
        for uid in self.volumes.pods_of(volume) {
            let Some(pod) = self.pods.reject(&uid, &mut self.volumes).cloned() else {
                continue;
            };
            self.recorder.event(&pod, EventType::Warning, REASON, MESSAGE);
            let status = self.pod_status.clone();
            self.running.push(
                async move {
                    status.report_rejected(&pod, REASON, MESSAGE).await;
                    Report::Nothing
                }
                .boxed(),
            );
        }
        self.update_driver();
    }
}
