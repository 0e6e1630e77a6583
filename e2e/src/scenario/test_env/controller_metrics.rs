//! Metrics of the attach/detach controller.

use std::time::Duration;

use anyhow::Result;

use super::{STEP_TIMEOUT, TestEnv};
use crate::cluster::Series;
use crate::control_plane::Component;

/// Upstream's name repeats the subsystem.
const FORCED_DETACHES: &str = "attach_detach_controller_attachdetach_controller_forced_detaches";

// === impl TestEnv ===

impl TestEnv<'_> {
    /// Waits until the attach/detach controller has this many of the driver's volumes in its desired and in its actual state
    /// of world: the metric `attachdetach_controller_total_volumes`.
    ///
    /// # Errors
    /// The harness did not start the cluster.
    pub async fn wait_for_total_volumes(&self, desired: u64, actual: u64) -> Result<()> {
        self.wait_for_total_volumes_of(Component::ControllerManager, desired, actual, STEP_TIMEOUT)
            .await
    }

    /// The same for a replica of kube-controller-manager.
    pub async fn wait_for_total_volumes_of(
        &self,
        replica: Component,
        desired: u64,
        actual: u64,
        within: Duration,
    ) -> Result<()> {
        let plugin = format!("kubernetes.io/csi:{}", self.driver.name());
        let volumes = |state| {
            let labels = [("plugin_name", plugin.as_str()), ("state", state)];
            Series::new("attachdetach_controller_total_volumes", labels)
        };
        let wanted = [
            (volumes("desired_state_of_world"), desired),
            (volumes("actual_state_of_world"), actual),
        ];
        self.wait_for_controller_metrics(replica, &wanted, within).await
    }

    /// Waits until the attach/detach controller has force-detached this many volumes because nodes did not unmount them in
    /// time, and this many because of the out-of-service taint.
    ///
    /// # Errors
    /// The harness did not start the cluster.
    pub async fn wait_for_forced_detaches(&self, timeout: u64, out_of_service: u64) -> Result<()> {
        let detaches = |reason| Series::new(FORCED_DETACHES, [("reason", reason)]);
        let wanted = [
            (detaches("timeout"), timeout),
            (detaches("out-of-service"), out_of_service),
        ];
        self.wait_for_controller_metrics(Component::ControllerManager, &wanted, STEP_TIMEOUT)
            .await
    }

    async fn wait_for_controller_metrics(
        &self,
        replica: Component,
        wanted: &[(Series, u64)],
        within: Duration,
    ) -> Result<()> {
        let cluster = self.ctx.cluster();
        cluster.wait_for_component_metrics(replica, wanted, within).await
    }
}
