//! What troubles do beside calls: to the disks of the driver's node, and to what its array keeps.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::Driver;
use crate::error_chain;
use crate::fault::{DeviceView, DiskView};
use crate::node::device::Trouble;
use crate::node::mount::Spoilt;
use crate::store;

// === impl Driver ===

impl Driver {
    /// Lets the volume's device and what is on it have what troubles there are at this moment.
    pub(super) fn trouble_device(&self, volume: &str, node: &str) {
        let Some(here) = self.node() else {
            return;
        };
        let troubles = self.faults.troubles();
        let device = match troubles.device(volume, node) {
            DeviceView::Right => None,
            DeviceView::Absent => Some(Trouble::Absent),
            DeviceView::Wrong(_) => Some(Trouble::Wrong),
        };
        here.trouble(volume, device);
        let spoilt = match troubles.disk(volume, node) {
            DiskView::Right => None,
            DiskView::Dirty => Some(Spoilt::Dirty),
            DiskView::Damaged => Some(Spoilt::Damaged),
            DiskView::Foreign(found) => Some(Spoilt::Foreign(found)),
        };
        here.spoil(volume, spoilt);
    }

    /// Has the array come back without what the troubles of this moment say, or with everything: after success
    /// also if the process is killed at once.
    ///
    /// # Errors
    /// If that cannot be written down; as before the array comes back then.
    pub(crate) async fn settle_loss(self: &Arc<Self>) -> Result<(), store::OpenError> {
        let driver = self.clone();
        let settled = tokio::task::spawn_blocking(move || {
            let wanted = driver.faults.troubles().loss();
            driver.store.lose(|| *wanted.borrow())
        });
        match settled.await {
            Ok(settled) => settled,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime ends, and with it whoever wants to know.
                Err(_) => Ok(()),
            },
        }
    }

    /// Settles losses of troubles that begin and end, in whatever way, until told to stop.
    pub(crate) async fn follow_losses(self: &Arc<Self>, stop: CancellationToken) {
        let mut loss = self.faults.troubles().loss();
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
