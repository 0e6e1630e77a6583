//! The attach/detach controller of kube-controller-manager, with upstream's structure and names.
//!
//! Pods and nodes populate the desired state; operations, node statuses and VolumeAttachments populate the actual
//! state; the reconciler starts the missing operations. One lock, never held over an await, protects both states.
//! One future polls all loops: dropping it simulates a crash.

mod actual_state_of_world;
mod controller;
mod csi_plugin;
mod desired_state_of_world;
mod desired_state_of_world_populator;
mod metrics;
mod multi_attach;
mod node_status_updater;
mod operation_executor;
mod pod_volumes;
mod pods_by_claim;
mod reconciler;
mod state_sync;
mod view;

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use actual_state_of_world::{ActualStateOfWorld, AttachState};
use desired_state_of_world::DesiredStateOfWorld;

use crate::nestedpendingoperations::NestedPendingOperations;
use crate::volume::UniqueVolumeName;

pub(crate) use controller::AttachDetachController;
pub use controller::AttachDetachOptions;
pub use metrics::ForceDetachReason;
pub use reconciler::ForceDetach;
pub use view::{AttachDetachView, VolumeView};

/// Both states of world, the pending operations and the metrics.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub desired: DesiredStateOfWorld,
    pub actual: ActualStateOfWorld,
    pub pending: NestedPendingOperations,
    pub metrics: metrics::Metrics,
    /// Volumes and nodes that the reconciler checks: those whose desired or actual state changed, until both agree or an
    /// operation starts. Its end adds them again.
    pub unsettled: BTreeSet<(UniqueVolumeName, String)>,
}

/// State shared by the controller's loops.
#[derive(Debug, Default)]
pub(crate) struct SharedState(Mutex<State>);

// === impl State ===

impl State {
    /// The desired or actual state of the volume on the node changed.
    pub(crate) fn mark_unsettled(&mut self, volume: &str, node: &str) {
        self.unsettled.insert((volume.to_owned(), node.to_owned()));
    }

    /// Whether `unsettled` has all pairs whose states differ and that have no pending operation.
    pub(crate) fn has_all_unsettled(&self) -> bool {
        let desired = self.desired.get_volumes_to_attach().into_iter();
        let desired = desired.map(|volume| (volume.volume_name, volume.node_name));
        let actual = self.actual.get_attached_volumes().into_iter();
        let actual = actual.map(|volume| (volume.volume_name, volume.node_name));
        desired.chain(actual).all(|pair| {
            let (volume, node) = &pair;
            let settled = if self.desired.volume_exists(volume, node) {
                AttachState::Attached
            } else {
                AttachState::Detached
            };
            self.actual.attach_state(volume, node) == settled
                || self.unsettled.contains(&pair)
                || self.pending.is_operation_pending(volume, "", node)
        })
    }

    /// Removes the pod from the volume in the desired state.
    pub(crate) fn delete_pod(&mut self, pod_uid: &str, volume: &str, node: &str) {
        if self.desired.delete_pod(pod_uid, volume, node) {
            self.mark_unsettled(volume, node);
        }
    }
}

// === impl SharedState ===

impl SharedState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
