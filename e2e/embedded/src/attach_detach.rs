//! The attach/detach controller of kube-controller-manager, with upstream's structure and names.
//!
//! Pods and nodes populate the desired state; operations, node statuses and VolumeAttachments populate the actual
//! state; the reconciler starts the missing operations. One lock, never held over an await, protects both states.
//! One future polls all loops: dropping it simulates a crash.

pub(crate) mod actual_state_of_world;
mod controller;
pub(crate) mod csi_plugin;
pub(crate) mod desired_state_of_world;
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

use std::sync::{Mutex, MutexGuard, PoisonError};

use actual_state_of_world::ActualStateOfWorld;
use desired_state_of_world::DesiredStateOfWorld;

use crate::pending_operations::PendingOperations;

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
    pub pending: PendingOperations,
    pub metrics: metrics::Metrics,
    /// The state changed since the last sync of the reconciler.
    pub changed: bool,
}

/// State shared by the controller's loops.
#[derive(Debug, Default)]
pub(crate) struct SharedState(Mutex<State>);

// === impl SharedState ===

impl SharedState {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
