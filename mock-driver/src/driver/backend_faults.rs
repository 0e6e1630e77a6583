//! What backend faults do beside calls: to the disks of the driver's node, and to what its array keeps.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::error_chain;
use crate::fault::{DeviceOverlay, DiskOverlay};
use crate::node::device::DeviceFault;
use crate::node::mount::disk_fault::DiskFault;
use crate::store;

// === impl Driver ===

impl Driver {
    /// Lets the volume's device and what is on it have what backend faults there are at this moment.
    pub(super) fn inject_device_fault(&self, volume: &str, node: &str) {
        let Some(here) = self.node() else {
            return;
        };
        let device = match self.faults.device(volume, node) {
            DeviceOverlay::Right => None,
            DeviceOverlay::Absent => Some(DeviceFault::Absent),
            DeviceOverlay::Wrong(_) => Some(DeviceFault::Wrong),
        };
        here.trouble(volume, device);
        let disk_fault = match self.faults.disk(volume, node) {
            DiskOverlay::Right => None,
            DiskOverlay::Dirty => Some(DiskFault::Dirty),
            DiskOverlay::Damaged => Some(DiskFault::Damaged),
            DiskOverlay::Foreign(found) => Some(DiskFault::Foreign(found)),
        };
        here.apply_disk_fault(volume, disk_fault);
    }

    /// Has the array come back without what the backend faults of this moment say, or with everything: after success
    /// also if the process is killed at once.
    ///
    /// # Errors
    /// If that cannot be written down; as before the array comes back then.
    pub(crate) async fn settle_loss(self: &Arc<Self>) -> Result<(), store::OpenError> {
        let driver = self.clone();
        let settled = tokio::task::spawn_blocking(move || {
            let wanted = driver.faults.loss();
            driver.store.lose(|| *wanted.borrow())
        });
        match settled.await {
            Ok(settled) => settled,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and with it the receiver.
                Err(_) => Ok(()),
            },
        }
    }

    /// Settles losses of backend faults that begin and end, in whatever way, until told to stop.
    pub(crate) async fn follow_losses(self: &Arc<Self>, stop: CancellationToken) {
        let mut loss = self.faults.loss();
        let follow = async {
            loop {
                if let Err(error) = self.settle_loss().await {
                    tracing::error!(
                        error = error_chain(&error),
                        "the trouble state-loss is without effect"
                    );
                }
                if loss.changed().await.is_err() {
                    return;
                }
            }
        };
        stop.run_until_cancelled(follow).await;
    }
}
