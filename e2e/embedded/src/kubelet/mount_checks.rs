//! Kubelet's checks before a mount (node affinity, ReadWriteOncePod), its events, and the rejection of pods that exceed the
//! attach limit.

use futures::FutureExt;
use k8s_openapi::api::core::v1::Pod;

use super::mount_spec::MountSpec;
use super::operation_result::{Finished, Step};
use super::volume_manager::Outcome;
use super::{Kubelet, Report};
use crate::event_recorder::EventType;
use crate::{node_selector, pod};

// === impl Kubelet ===

impl Kubelet {
    /// The failure of a mount that must not start.
    pub(super) fn refuse_mount(&self, spec: &MountSpec, pod: &str) -> Option<Finished> {
        let failed = |step, error| Some(Finished::failed(Outcome::Failed, step, spec, error));
        let affinity = spec.node_affinity.as_ref();
        if affinity.is_some_and(|required| !node_selector::matches(required, &self.node)) {
            return failed(Step::NodeAffinity, "no matching NodeSelectorTerms");
        }
        if spec.access_modes == ["ReadWriteOncePod"]
            && self.volumes.is_mounted_elsewhere(&spec.unique_name, pod)
        {
            let step = if spec.block {
                Step::MountDevice
            } else {
                Step::SetUp
            };
            let error = "volume uses the ReadWriteOncePod access mode and is already in use by another pod";
            return failed(step, error);
        }
        None
    }

    /// Records the event of a failed mount, or those of a mapped block volume.
    pub(super) fn record_mount(&self, pod: &Pod, spec: &MountSpec, finished: Finished) {
        if let Some((reason, message)) = finished.event {
            self.recorder.event(pod, EventType::Warning, reason, &message);
        } else if spec.block && finished.outcome == Outcome::Done {
            let disk = &self.config.disk;
            for (name, path) in [
                ("globalMapPath", disk.global_map_path(spec)),
                ("volumeMapPath", disk.pod_device_map_path(pod::uid(pod))),
            ] {
                let message = format!(
                    "MapVolume.MapPodDevice succeeded for volume {:?} {name} {path:?}",
                    spec.name
                );
                self.recorder
                    .event(pod, EventType::Normal, "SuccessfulMountVolume", &message);
            }
        }
    }

    /// The volumes of a pod were not mounted in time. If a volume is not attached because the node is at its attach limit,
    /// although its CSINode allows more, the pod is rejected.
    pub(super) fn verify_attach_limit(&mut self, pod: &Pod) {
        let uid = pod::uid(pod).to_owned();
        let mut unattached = self.volumes.unattached(&uid);
        unattached.retain(|spec| spec.reports_attach_limit);
        let mounter = self.mounter.clone();
        self.running.push(
            async move {
                for spec in &unattached {
                    if mounter.is_attach_limit_exceeded(spec).await {
                        return Report::AttachLimitExceeded(uid);
                    }
                }
                Report::Nothing
            }
            .boxed(),
        );
    }

    /// Rejects a pod that exceeds the attach limit, so that its controller creates a new one, and reads the limit again.
    pub(super) fn reject_pod(&mut self, uid: &str) {
        const REASON: &str = "VolumeAttachmentLimitExceeded";
        let [unmounted, unattached] = self.volumes.unmounted(uid).map(|names| names.join(" "));
        if let Some(pod) = self.pods.reject(uid, &mut self.volumes).cloned() {
            let message = format!(
                "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[{unmounted}], unattached \
                 volumes=[{unattached}], failed to process volumes=[]: context deadline exceeded"
            );
            self.recorder.event(&pod, EventType::Warning, REASON, &message);
            let status = self.pod_status.clone();
            self.running.push(
                async move {
                    status.report_rejected(&pod, REASON, &message).await;
                    Report::Nothing
                }
                .boxed(),
            );
        }
        self.update_driver();
    }
}
