//! Settings of a cluster that the harness starts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::control_plane::{Component, Options, Timers};

/// Non-default settings of the control plane, for all backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Time after which the attach/detach controller force-detaches a volume from an unhealthy node; default: 6 minutes.
    pub max_wait_for_unmount: Option<Duration>,
    /// Period of the populator's two loops; default: 1 minute and 3 minutes.
    pub populator_period: Option<Duration>,
    /// Timeout of the attach/detach controller for the external-attacher; default: 2 minutes, which is a constant in the
    /// real controller.
    pub csi_timeout: Option<Duration>,
    /// `--disable-force-detach-on-timeout`.
    pub disable_force_detach_on_timeout: bool,
    /// `--attach-detach-reconcile-sync-period`.
    pub reconcile_sync_period: Option<Duration>,
    /// `--node-monitor-grace-period`.
    pub node_monitor_grace_period: Option<Duration>,
    /// Whether a second kube-controller-manager runs as standby.
    pub standby_controller_manager: bool,
    /// Whether the controllers log at a high verbosity.
    pub verbose_log: bool,
}

// === impl ClusterSettings ===

impl ClusterSettings {
    /// Default settings.
    pub const DEFAULT: Self = Self {
        max_wait_for_unmount: None,
        populator_period: None,
        csi_timeout: None,
        disable_force_detach_on_timeout: false,
        reconcile_sync_period: None,
        node_monitor_grace_period: None,
        standby_controller_manager: false,
        verbose_log: false,
    };

    /// Whether a scenario with these settings needs its own real control plane.
    pub(crate) fn needs_own_control_plane(self) -> bool {
        // Only the embedded cluster has this setting; a scenario with it alone uses the shared control plane.
        let others = Self {
            csi_timeout: None,
            ..self
        };
        self.csi_timeout.is_none() || others != Self::DEFAULT
    }

    /// Options of a real control plane with these settings.
    pub(super) fn control_plane(self) -> Options {
        let mut flags = Vec::new();
        if self.disable_force_detach_on_timeout {
            flags.push("--disable-force-detach-on-timeout=true".to_owned());
        }
        if let Some(time) = self.reconcile_sync_period {
            flags.push(format!(
                "--attach-detach-reconcile-sync-period={}s",
                time.as_secs()
            ));
        }
        if let Some(time) = self.node_monitor_grace_period {
            flags.push(format!("--node-monitor-grace-period={}s", time.as_secs()));
        }
        if self.verbose_log {
            flags.push("--v=5".to_owned());
        }
        Options {
            scheduler: true,
            timers: Timers {
                max_wait_for_unmount: self.max_wait_for_unmount,
                populator_period: self.populator_period,
            },
            standby_controller_manager: self.standby_controller_manager,
            extra_flags: BTreeMap::from([(Component::ControllerManager, flags)]),
            ..Options::default()
        }
    }
}
