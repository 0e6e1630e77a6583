//! Control planes that one scenario has to itself.

use std::time::Duration;

/// How a scenario's own control plane differs from the shared one.
#[derive(Clone, Copy, Debug)]
pub struct OwnCluster {
    /// After how long the attach/detach controller force-detaches a volume from an unhealthy node.
    pub max_wait_for_unmount: Option<Duration>,
    /// Whether there is a second kube-controller-manager.
    pub standby_controller_manager: bool,
    /// More flags of kube-controller-manager.
    pub controller_manager_flags: &'static [&'static str],
}

// === impl OwnCluster ===

impl OwnCluster {
    /// With the settings of the shared one.
    pub const DEFAULT: Self = Self {
        max_wait_for_unmount: None,
        standby_controller_manager: false,
        controller_manager_flags: &[],
    };
}
