//! Unpublishes and unstages volumes through the driver's Node service.

use csi_proto::v1;

use super::csi_mounter::{CsiMounter, Finished, capabilities, text};
use super::mount_spec::MountSpec;
use super::volume_manager::Outcome;
use crate::driver_connection::describe;

// === impl CsiMounter ===

impl CsiMounter {
    pub(super) async fn unmount(&self, spec: &MountSpec, pod: &str) -> Finished {
        let path = self.disk.target_path(spec, pod);
        let Some(driver) = self.driver_of(spec) else {
            return Finished::new(Outcome::Failed);
        };
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: spec.handle.clone(),
            target_path: text(&path),
        };
        match driver.node().node_unpublish_volume(request).await {
            Ok(_) => {
                self.disk.remove(&path);
                Finished::new(Outcome::Done)
            }
            Err(status) => {
                tracing::debug!(volume = %spec.name, error = %describe(&status), "UnmountVolume.TearDown failed");
                Finished::new(Outcome::Failed)
            }
        }
    }

    pub(super) async fn unmount_device(&self, spec: &MountSpec) -> Finished {
        let path = self.disk.staging_path(spec);
        let Some(driver) = self.driver_of(spec) else {
            return Finished::new(Outcome::Failed);
        };
        let unstaged = match capabilities(&driver).await {
            Ok(capabilities) if capabilities.stages => {
                let request = v1::NodeUnstageVolumeRequest {
                    volume_id: spec.handle.clone(),
                    staging_target_path: text(&path),
                };
                driver.node().node_unstage_volume(request).await.map(drop)
            }
            Ok(_) => Ok(()),
            Err(status) => Err(status),
        };
        match unstaged {
            Ok(()) => {
                self.disk.remove(&path);
                Finished::new(Outcome::Done)
            }
            Err(status) => {
                tracing::debug!(volume = %spec.name, error = %describe(&status), "UnmountDevice failed");
                Finished::new(Outcome::Failed)
            }
        }
    }
}
