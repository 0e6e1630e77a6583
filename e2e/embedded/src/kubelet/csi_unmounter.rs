//! Unpublishes and unstages volumes through the driver's Node service.

use csi_proto::v1;

use super::csi_mounter::{CsiMounter, capabilities, step_error};
use super::mount_spec::MountSpec;
use super::operation_result::Finished;
use super::volume_manager::Outcome;

// === impl CsiMounter ===

impl CsiMounter {
    /// Upstream's `TearDown`, and `UnmapPodDevice` of a block volume.
    pub(super) async fn unmount(&self, spec: &MountSpec, pod: &str) -> Finished {
        let path = self.disk.target_path(spec, pod);
        let unpublished = async {
            let [step, no_client] = if spec.block {
                [
                    "blockMapper.unpublishVolumeForBlock failed",
                    "blockMapper.UnmapPodDevice failed to get CSI client",
                ]
            } else {
                [
                    "Unmounter.TearDownAt failed",
                    "Unmounter.TearDownAt failed to get CSI client",
                ]
            };
            let driver = self.driver_of(spec, no_client)?;
            let request = v1::NodeUnpublishVolumeRequest {
                volume_id: spec.handle.clone(),
                target_path: path.display().to_string(),
            };
            let response = driver.node().node_unpublish_volume(request).await;
            response.map_err(|status| step_error(Some(step), &status))
        };
        if let Err(error) = unpublished.await {
            let step = if spec.block {
                "UnmapVolume.UnmapPodDevice"
            } else {
                "UnmountVolume.TearDown"
            };
            tracing::debug!(volume = %spec.name, step, error, "unmount failed");
            return Finished::new(Outcome::Failed);
        }
        self.disk.remove(&path);
        Finished::new(Outcome::Done)
    }

    /// Upstream's `UnmountDevice`, and `TearDownDevice` of a block volume.
    pub(super) async fn unmount_device(&self, spec: &MountSpec) -> Finished {
        if let Err(error) = self.unstage(spec).await {
            let step = if spec.block {
                "UnmapDevice.TearDownDevice"
            } else {
                "UnmountDevice"
            };
            tracing::debug!(volume = %spec.name, step, error, "unmount failed");
            return Finished::new(Outcome::Failed);
        }
        self.disk.remove(&self.disk.staging_path(spec));
        Finished::new(Outcome::Done)
    }

    async fn unstage(&self, spec: &MountSpec) -> Result<(), String> {
        let [step, no_client, no_capabilities] = if spec.block {
            [
                "blockMapper.unstageVolumeForBlock failed",
                "blockMapper.TearDownDevice failed to get CSI client",
                "blockMapper.unstageVolumeForBlock failed to check STAGE_UNSTAGE_VOLUME capability",
            ]
        } else {
            [
                "attacher.UnmountDevice failed",
                "attacher.UnmountDevice failed to create newCsiDriverClient",
                "attacher.UnmountDevice failed to check whether STAGE_UNSTAGE_VOLUME set",
            ]
        };
        let driver = self.driver_of(spec, no_client)?;
        let capabilities = capabilities(&driver).await;
        let capabilities = capabilities.map_err(|status| step_error(Some(no_capabilities), &status))?;
        if !capabilities.stages {
            return Ok(());
        }
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: spec.handle.clone(),
            staging_target_path: self.disk.staging_path(spec).display().to_string(),
        };
        let response = driver.node().node_unstage_volume(request).await;
        response
            .map(drop)
            .map_err(|status| step_error(Some(step), &status))
    }
}
