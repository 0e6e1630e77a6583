//! Verifies periodically that attached volumes are still attached, as upstream's `syncStates`: if another client
//! deleted the VolumeAttachment, the volume is attached again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::actual_state_of_world::AttachState;
use super::csi_plugin::CsiPlugin;
use super::operation_executor::is_operation_pending;
use super::{SharedState, State};
use crate::volume::VolumeSpec;

/// The verification loop.
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
            self.sync_states().await;
        }
    }

    async fn sync_states(&self) {
        let volumes = {
            let state = self.state.lock();
            debug_assert!(
                state.has_all_unsettled(),
                "the reconciler must know each difference"
            );
            state.actual.get_attached_volumes()
        };
        for volume in volumes {
            let (name, node) = (&volume.volume_name, &volume.node_name);
            let Some(spec) = volume.spec.as_deref() else {
                continue;
            };
            let was_settled = is_settled(&self.state.lock(), name, spec, node);
            if !was_settled || self.plugin.is_attached(spec, node).await {
                continue;
            }
            // An operation may have started meanwhile.
            let mut state = self.state.lock();
            if is_settled(&state, name, spec, node) {
                tracing::info!(volume = %name, %node, "attached volume has no attached VolumeAttachment");
                state.actual.mark_volume_as_detached(name, node);
                state.mark_unsettled(name, node);
            }
        }
    }
}

/// Whether the volume is attached and no operation on it is pending.
fn is_settled(state: &State, name: &str, spec: &VolumeSpec, node: &str) -> bool {
    state.actual.attach_state(name, node) == AttachState::Attached
        && !is_operation_pending(&state.pending, name, Some(spec), node)
}
