//! Syncs the desired state with the informers: by default, removes deleted pods every minute, and adds missed pods every
//! three minutes.

use std::collections::BTreeSet;
use std::sync::Arc;

use tokio::time::{Instant, MissedTickBehavior, interval};

use super::csi_plugin::CsiPlugin;
use super::pod_volumes::{determine_volume_action, process_pod_volumes};
use super::{AttachDetachOptions, SharedState};
use crate::informers::Informers;
use crate::injected_bug::InjectedBug;
use crate::pod;

/// The populator's loop.
pub(crate) struct DesiredStateOfWorldPopulator {
    pub state: Arc<SharedState>,
    pub informers: Informers,
    pub plugin: Arc<CsiPlugin>,
    pub options: AttachDetachOptions,
}

// === impl DesiredStateOfWorldPopulator ===

impl DesiredStateOfWorldPopulator {
    /// Runs until the future is dropped.
    pub(crate) async fn run(self) {
        let mut ticks = interval(self.options.populator_loop_sleep_period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut listed: Option<Instant> = None;
        loop {
            let now = ticks.tick().await;
            self.find_and_remove_deleted_pods();
            let period = self.options.populator_list_pods_retry_duration;
            if listed.is_none_or(|listed| now.duration_since(listed) >= period) {
                listed = Some(now);
                self.find_and_add_active_pods();
            }
        }
    }

    /// Removes deleted, terminated and re-created pods, and volumes that no longer need an attach.
    fn find_and_remove_deleted_pods(&self) {
        let mut state = self.state.lock();
        for (known, volume, node) in state.desired.get_pod_to_add() {
            let keep = self
                .informers
                .pods
                .get(&known.namespace, &known.name)
                .is_some_and(|pod| {
                    let same = pod::uid(&pod) == known.uid
                        || self.options.injected_bug == Some(InjectedBug::DeletedPodStaysDesired);
                    same && determine_volume_action(&pod)
                });
            if !keep {
                state.delete_pod(&known.uid, &volume, &node);
            }
        }
        let mut not_attachable = BTreeSet::new();
        for volume in state.desired.get_volumes_to_attach() {
            if !self.plugin.can_attach(&volume.spec.driver) {
                tracing::info!(volume = %volume.volume_name, "Volume changes from attachable to non-attachable");
                for pod in volume.scheduled_pods {
                    not_attachable.insert((pod.uid, volume.volume_name.clone(), volume.node_name.clone()));
                }
            }
        }
        for (pod, volume, node) in not_attachable {
            state.delete_pod(&pod, &volume, &node);
        }
    }

    /// Adds pods with volumes that could not be resolved at the pod's last change.
    fn find_and_add_active_pods(&self) {
        let mut state = self.state.lock();
        for pod in self.informers.pods.list() {
            if !pod::is_terminated(&pod) {
                process_pod_volumes(&pod, true, &mut state, &self.informers, &self.plugin);
            }
        }
    }
}
