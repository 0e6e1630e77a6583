//! Verifies periodically that attached volumes are still attached, as upstream's `syncStates`: if another client
//! deleted the VolumeAttachment, the volume is attached again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::stream::{self, StreamExt};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::SharedState;
use super::actual_state_of_world::{AttachState, AttachedVolume};
use super::csi_plugin::CsiPlugin;

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
        let mut by_node: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for volume in volumes {
            by_node.entry(volume.node_name.clone()).or_default().push(volume);
        }
        let nodes = stream::iter(by_node.into_values());
        nodes
            .for_each_concurrent(None, async |volumes| {
                self.verify_volumes_are_attached(volumes).await
            })
            .await;
    }

    /// As upstream, also while an operation on the volume is pending.
    async fn verify_volumes_are_attached(&self, volumes: Vec<AttachedVolume>) {
        for volume in volumes {
            let (name, node) = (&volume.volume_name, &volume.node_name);
            let is_confirmed = volume.attach_state == AttachState::Attached;
            let Some(spec) = volume.spec.as_deref().filter(|_| is_confirmed) else {
                continue;
            };
            if !self.plugin.is_attached(spec, node).await {
                tracing::info!(volume = %name, %node, "attached volume has no attached VolumeAttachment");
                let mut state = self.state.lock();
                state.actual.mark_volume_as_detached(name, node);
                state.mark_unsettled(name, node);
            }
        }
    }
}
