//! The controller's metrics, with upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Upstream's name repeats the subsystem.
const FORCED_DETACHES: &str = "attach_detach_controller_attachdetach_controller_forced_detaches";

/// The reason of a forced detach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ForceDetachReason {
    /// The node was unhealthy and did not unmount in time.
    Timeout,
    /// The node has the out-of-service taint.
    OutOfService,
}

/// Counters of the attach/detach controller.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    forced_detaches: BTreeMap<ForceDetachReason, u64>,
}

// === impl ForceDetachReason ===

impl ForceDetachReason {
    fn label(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::OutOfService => "out-of-service",
        }
    }
}

// === impl Metrics ===

impl Metrics {
    pub(crate) fn record_forced_detach(&mut self, reason: ForceDetachReason) {
        *self.forced_detaches.entry(reason).or_default() += 1;
    }

    pub(crate) fn forced_detaches(&self, reason: ForceDetachReason) -> u64 {
        self.forced_detaches.get(&reason).copied().unwrap_or_default()
    }

    /// The metrics in Prometheus text format; the arguments are the numbers of volumes by driver in each state of
    /// world, and by node and driver.
    pub(crate) fn render(
        &self,
        desired: &BTreeMap<String, usize>,
        actual: &BTreeMap<String, usize>,
        in_use: &BTreeMap<(String, String), usize>,
    ) -> String {
        let mut text = format!("# TYPE {FORCED_DETACHES} counter\n");
        for reason in [ForceDetachReason::OutOfService, ForceDetachReason::Timeout] {
            let (label, count) = (reason.label(), self.forced_detaches(reason));
            writeln!(text, "{FORCED_DETACHES}{{reason=\"{label}\"}} {count}")
                .expect("writing to a String must succeed");
        }
        text.push_str("# TYPE storage_count_attachable_volumes_in_use gauge\n");
        for ((node, driver), count) in in_use {
            writeln!(
                text,
                "storage_count_attachable_volumes_in_use{{node=\"{node}\",volume_plugin=\"kubernetes.io/csi:{driver}\"}} \
                 {count}"
            )
            .expect("writing to a String must succeed");
        }
        text.push_str("# TYPE attachdetach_controller_total_volumes gauge\n");
        for (state, volumes) in [
            ("actual_state_of_world", actual),
            ("desired_state_of_world", desired),
        ] {
            for (driver, count) in volumes {
                writeln!(
                    text,
                    "attachdetach_controller_total_volumes{{plugin_name=\"kubernetes.io/csi:{driver}\",\
                     state=\"{state}\"}} {count}"
                )
                .expect("writing to a String must succeed");
            }
        }
        text
    }
}
