//! A read-only view of the controller: desired and actual state of world, and metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::SharedState;
use super::actual_state_of_world::AttachState;
use super::metrics::ForceDetachReason;
use super::operation_executor::is_operation_pending;
use super::pod_volumes::driver_of;
use crate::informers::Informers;
use crate::pod;
use crate::volume::UniqueVolumeName;

/// A read-only handle to the state of a running controller.
#[derive(Clone, Debug)]
pub struct AttachDetachView {
    state: Arc<SharedState>,
    informers: Informers,
}

/// A volume on a node in the desired and the actual state of world.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeView {
    /// Namespace and name of the pods that need the volume on the node.
    pub desired_by: Vec<String>,
    /// `attached`, `uncertain`, or nothing.
    pub actual: Option<&'static str>,
    /// The node reports the volume as in use, or has not reported yet.
    pub mounted_by_node: bool,
    /// An attach or detach is running.
    pub operation_pending: bool,
}

// === impl AttachDetachView ===

impl AttachDetachView {
    pub(super) fn new(state: Arc<SharedState>, informers: Informers) -> Self {
        Self { state, informers }
    }

    /// Every volume and node of both states.
    pub fn volumes(&self) -> BTreeMap<(UniqueVolumeName, String), VolumeView> {
        let state = self.state.lock();
        let mut views: BTreeMap<_, VolumeView> = BTreeMap::new();
        for volume in state.desired.get_volumes_to_attach() {
            let (name, node) = (volume.volume_name, volume.node_name);
            let pending = is_operation_pending(&state.pending, &name, Some(&volume.spec), &node);
            let view = views.entry((name, node)).or_default();
            view.desired_by = volume
                .scheduled_pods
                .iter()
                .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                .collect();
            view.operation_pending = pending;
        }
        for volume in state.actual.get_attached_volumes() {
            let (name, node) = (volume.volume_name, volume.node_name);
            let pending = is_operation_pending(&state.pending, &name, volume.spec.as_deref(), &node);
            let view = views.entry((name, node)).or_default();
            view.actual = match volume.attach_state {
                AttachState::Attached => Some("attached"),
                AttachState::Uncertain => Some("uncertain"),
                AttachState::Detached => None,
            };
            view.mounted_by_node = volume.mounted_by_node;
            view.operation_pending = pending;
        }
        views
    }

    /// Number of forced detaches.
    pub fn forced_detaches(&self, reason: ForceDetachReason) -> u64 {
        self.state.lock().metrics.forced_detaches(reason)
    }

    /// The metrics in Prometheus' text format.
    pub fn metrics(&self) -> String {
        let mut in_use = BTreeMap::new();
        for pod in self.informers.pods.list() {
            let Some(node) = pod::node_name(&pod) else {
                continue;
            };
            let volumes = pod::volumes(&pod).iter();
            for driver in volumes.filter_map(|volume| driver_of(&pod, volume, &self.informers)) {
                *in_use.entry((node.to_owned(), driver)).or_default() += 1;
            }
        }
        let state = self.state.lock();
        state.metrics.render(
            &state.desired.volumes_by_driver(),
            &state.actual.volumes_by_driver(),
            &in_use,
        )
    }
}
