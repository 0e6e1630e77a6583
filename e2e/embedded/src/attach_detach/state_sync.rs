//! Verifies periodically that attached volumes still are, as `syncStates` of the real controller does: a volume whose
//! VolumeAttachment was deleted by someone else is attached again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::SharedState;
use super::actual_state_of_world::AttachState;
use super::csi_plugin::CsiPlugin;
use super::operation_executor::operation_key;

/// The loop.
pub(crate) struct StateSync {
    pub state: Arc<SharedState>,
    pub plugin: Arc<CsiPlugin>,
    /// `--attach-detach-reconcile-sync-period`.
    pub period: Duration,
}

// === impl StateSync ===

impl StateSync {
    pub(crate) async fn run(self) {
        let mut ticks = interval_at(Instant::now() + self.period, self.period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.sync_states();
        }
    }

    fn sync_states(&self) {
        let mut state = self.state.lock();
        let state = &mut *state;
        for volume in state.actual.get_attached_volumes(|_, _| true) {
            let (name, node) = (&volume.volume_name, &volume.node_name);
            let Some(spec) = volume.spec.as_deref() else {
                continue;
            };
            let is_pending = state
                .pending
                .is_operation_pending(&operation_key(name, Some(spec), node));
            if volume.attach_state == AttachState::Attached
                && !is_pending
                && !self.plugin.is_attached(spec, node)
            {
                tracing::info!(volume = %name, %node, "attached volume has no VolumeAttachment that says so");
                state.actual.mark_volume_as_detached(name, node);
                state.changed = true;
            }
        }
    }
}
