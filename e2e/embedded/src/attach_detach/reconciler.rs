//! Compares the desired with the actual state of world and starts the missing operations. Detaches come first, so
//! that a volume whose pod moved is detached from the old node before it is attached to the new one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::actual_state_of_world::{AttachState, AttachedVolume};
use super::desired_state_of_world::VolumeToAttach;
use super::metrics::ForceDetachReason;
use super::multi_attach;
use super::node_status_updater::NodeStatusUpdater;
use super::operation_executor::{DETACH_OPERATION, OperationExecutor, is_operation_pending, key_node};
use super::{SharedState, State};
use crate::event_recorder::EventType;
use crate::informer::Informer;
use crate::injected_bug::InjectedBug;
use crate::node;
use crate::volume::UniqueVolumeName;

/// Delay between two syncs.
const LOOP_PERIOD: Duration = Duration::from_millis(100);

/// When a volume that is still mounted is force-detached.
#[derive(Clone, Copy, Debug)]
pub struct ForceDetach {
    /// Maximum wait for the unmount before a volume is detached from an unhealthy node.
    pub max_wait_for_unmount: Duration,
    /// Never detach by timeout; only the out-of-service taint forces a detach.
    pub disable_on_timeout: bool,
}

/// Health of the node from which a volume should be detached.
#[derive(Clone, Copy, Debug)]
struct NodeHealth {
    ready: bool,
    out_of_service: bool,
}

/// The decision on a volume that is attached and not desired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DetachDecision {
    WaitForUnmount,
    Detach,
    ForceDetach(ForceDetachReason),
}

/// The reconciler's loop.
pub(crate) struct Reconciler {
    pub state: Arc<SharedState>,
    pub nodes: Informer<Node>,
    pub executor: OperationExecutor,
    pub node_status_updater: NodeStatusUpdater,
    pub force_detach: ForceDetach,
    pub forced_detaches: Option<UnboundedSender<(UniqueVolumeName, String)>>,
    pub injected_bug: Option<InjectedBug>,
}

// === impl ForceDetach ===

impl Default for ForceDetach {
    fn default() -> Self {
        Self {
            max_wait_for_unmount: Duration::from_secs(6 * 60),
            disable_on_timeout: false,
        }
    }
}

// === impl NodeHealth ===

impl NodeHealth {
    /// A node that does not exist is unhealthy and has no taint.
    fn of(node: Option<&Node>) -> Self {
        Self {
            ready: node.is_some_and(node::is_ready),
            out_of_service: node.is_some_and(|node| node::has_taint(node, node::OUT_OF_SERVICE)),
        }
    }
}

// === impl DetachDecision ===

impl DetachDecision {
    /// Decides on a volume whose detach was requested `elapsed` ago.
    fn new(mounted: bool, elapsed: Duration, health: NodeHealth, policy: ForceDetach) -> Self {
        let timed_out = elapsed > policy.max_wait_for_unmount && !policy.disable_on_timeout;
        let forced = (timed_out && !health.ready) || health.out_of_service;
        if mounted && !forced {
            return Self::WaitForUnmount;
        }
        if timed_out {
            Self::ForceDetach(ForceDetachReason::Timeout)
        } else if health.out_of_service {
            Self::ForceDetach(ForceDetachReason::OutOfService)
        } else {
            Self::Detach
        }
    }
}

// === impl Reconciler ===

impl Reconciler {
    /// Runs until the future is dropped. Skips a sync if there is nothing to do.
    pub(crate) async fn run(self) {
        let mut ticks = interval(LOOP_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.is_sync_due() {
                self.reconcile().await;
            }
        }
    }

    fn is_sync_due(&self) -> bool {
        let state = self.state.lock();
        !state.unsettled.is_empty() || state.actual.is_node_status_update_needed()
    }

    async fn reconcile(&self) {
        // A detach first writes the status of its node. As upstream, one that takes long delays all others, and the attaches.
        for volume in self.volumes_to_detach() {
            self.detach(volume).await;
        }
        for volume in self.volumes_to_attach() {
            self.attach(volume);
        }
        if let Err(error) = self.node_status_updater.update_node_statuses().await {
            tracing::debug!(%error, "UpdateNodeStatuses failed");
        }
    }

    /// The volumes that are attached, not desired, without a pending operation, and not known to wait for their unmount.
    fn volumes_to_detach(&self) -> Vec<AttachedVolume> {
        let now = Instant::now();
        let state = self.state.lock();
        let mut health = BTreeMap::new();
        let undesired = state.unsettled.iter();
        undesired
            .filter(|(name, node)| !state.desired.volume_exists(name, node))
            .filter_map(|(name, node)| {
                let volume = state.actual.get_attached_volume(name, node)?;
                if is_operation_pending(&state.pending, name, volume.spec(), node) {
                    return None;
                }
                let Some(requested) = volume.detach_requested().filter(|_| volume.mounted_by_node()) else {
                    return Some(volume.to_attached_volume());
                };
                let health = *health.entry(node).or_insert_with(|| self.node_health(node));
                let elapsed = now.saturating_duration_since(requested);
                let decision = DetachDecision::new(true, elapsed, health, self.force_detach);
                (decision != DetachDecision::WaitForUnmount || self.is_timeout_disabled_after(elapsed))
                    .then(|| volume.to_attached_volume())
            })
            .collect()
    }

    fn is_timeout_disabled_after(&self, elapsed: Duration) -> bool {
        self.force_detach.disable_on_timeout && elapsed > self.force_detach.max_wait_for_unmount
    }

    fn node_health(&self, node: &str) -> NodeHealth {
        let mut health = NodeHealth::of(self.nodes.get("", node).as_deref());
        health.ready &= self.injected_bug != Some(InjectedBug::ForcedDetachFromHealthyNode);
        health
    }

    /// The volumes that are desired, not attached, and without a pending operation. Settles those whose states agree.
    fn volumes_to_attach(&self) -> Vec<VolumeToAttach> {
        let mut state = self.state.lock();
        let State {
            desired,
            actual,
            pending,
            unsettled,
            ..
        } = &mut *state;
        let mut volumes = Vec::new();
        unsettled.retain(|(name, node)| {
            let Some(spec) = desired.spec(name, node) else {
                return actual.attach_state(name, node) != AttachState::Detached;
            };
            if is_operation_pending(pending, name, Some(spec), node) {
                return true;
            }
            if actual.reset_detach_request_time(name, node) {
                return false;
            }
            volumes.extend(desired.get_volume_to_attach(name, node));
            true
        });
        volumes
    }

    async fn detach(&self, volume: AttachedVolume) {
        let (name, node) = (volume.volume_name.clone(), volume.node_name.clone());
        let Some(elapsed) = self.request_detach(&volume) else {
            return;
        };
        let health = self.node_health(&node);
        let decision = DetachDecision::new(volume.mounted_by_node, elapsed, health, self.force_detach);
        if self.is_timeout_disabled_after(elapsed) {
            tracing::debug!(
                volume = %name, %node, "Drain timeout expired for volume but disableForceDetachOnTimeout was set"
            );
        }
        if decision == DetachDecision::WaitForUnmount {
            tracing::debug!(volume = %name, %node, "Cannot detach volume because it is still mounted");
            return;
        }
        // The node must not mount a volume that is about to be detached.
        self.state
            .lock()
            .actual
            .remove_volume_from_report_as_attached(&name, &node);
        if let Err(error) = self.node_status_updater.update_node_status_for_node(&node).await {
            tracing::debug!(volume = %name, %node, %error, "UpdateNodeStatusForNode failed, detach is put off");
            self.state
                .lock()
                .actual
                .add_volume_to_report_as_attached(&name, &node);
            return;
        }
        // Read without the injected bug, so that a bug excuses no detach.
        let health = NodeHealth::of(self.nodes.get("", &node).as_deref());
        let excused = volume.mounted_by_node && (!health.ready || health.out_of_service);
        let started = self
            .executor
            .detach_volume(volume, decision == DetachDecision::Detach);
        let mut state = self.state.lock();
        match (started, decision) {
            (Ok(()), DetachDecision::ForceDetach(reason)) => {
                tracing::info!(volume = %name, %node, ?reason, "force detaching");
                state.metrics.record_forced_detach(reason);
                if let Some(forced) = self.forced_detaches.as_ref().filter(|_| excused) {
                    // The receiver may be gone.
                    forced.send((name, node)).ok();
                }
            }
            (Ok(()), DetachDecision::Detach | DetachDecision::WaitForUnmount) => {}
            (Err(_), _) => state.actual.add_volume_to_report_as_attached(&name, &node),
        }
    }

    /// Time since the detach was requested; `None` if it cannot be started now.
    fn request_detach(&self, volume: &AttachedVolume) -> Option<Duration> {
        let now = Instant::now();
        let (name, node) = (&volume.volume_name, &volume.node_name);
        let of_node = key_node(volume.spec.as_deref(), node);
        let mut state = self.state.lock();
        // A pod may need the volume again since the list was built: an earlier detach has waited for its node's status.
        if state.desired.volume_exists(name, node) {
            return None;
        }
        let pending = &state.pending;
        if !pending.is_operation_safe_to_retry(name, "", of_node, DETACH_OPERATION, now) {
            return None;
        }
        // An operation may have ended since the list was built.
        if state.actual.attach_state(name, node) == AttachState::Detached {
            return None;
        }
        state.actual.set_detach_request_time(name, node, now)
    }

    fn attach(&self, volume: VolumeToAttach) {
        let (name, node) = (&volume.volume_name, &volume.node_name);
        let mut state = self.state.lock();
        if is_operation_pending(&state.pending, name, Some(&volume.spec), node)
            || state.actual.attach_state(name, node) == AttachState::Attached
        {
            return;
        }
        if !volume.spec.is_multi_attach_allowed() {
            let mut nodes = state.actual.get_nodes_for_attached_volume(&volume.volume_name);
            if !nodes.is_empty() {
                if !volume.multi_attach_error_reported {
                    nodes.retain(|node| *node != volume.node_name);
                    let pods = state
                        .desired
                        .get_volume_pods_on_nodes(&nodes, &volume.volume_name);
                    for (pod, message) in multi_attach::messages(&volume, &pods) {
                        self.executor
                            .pod_event(&pod, EventType::Warning, "FailedAttachVolume", &message);
                    }
                    state
                        .desired
                        .set_multi_attach_error(&volume.volume_name, &volume.node_name);
                }
                return;
            }
        }
        drop(state);
        // A later sync retries a volume in backoff.
        if let Ok(()) = self.executor.attach_volume(volume.clone()) {
            tracing::debug!(volume = %volume.volume_name, node = %volume.node_name, "AttachVolume started");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounted_volume_is_detached_only_by_force() {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        let timeout = DetachDecision::ForceDetach(ForceDetachReason::Timeout);
        let taint = DetachDecision::ForceDetach(ForceDetachReason::OutOfService);
        // mounted, minutes since the request, node ready, out-of-service taint, timeout disabled
        let cases = [
            (false, 0, true, false, false, DetachDecision::Detach),
            (false, 0, false, false, false, DetachDecision::Detach),
            (true, 0, true, false, false, DetachDecision::WaitForUnmount),
            (true, 0, false, false, false, DetachDecision::WaitForUnmount),
            (true, 6, false, false, false, DetachDecision::WaitForUnmount),
            (true, 7, false, false, false, timeout),
            (true, 7, true, false, false, DetachDecision::WaitForUnmount),
            (true, 7, false, false, true, DetachDecision::WaitForUnmount),
            (true, 0, true, true, false, taint),
            (true, 0, false, true, true, taint),
            (false, 7, true, false, false, timeout),
            (true, 7, false, true, false, timeout),
        ];
        for (mounted, elapsed, ready, out_of_service, disable_on_timeout, expected) in cases {
            let health = NodeHealth {
                ready,
                out_of_service,
            };
            let policy = ForceDetach {
                disable_on_timeout,
                ..ForceDetach::default()
            };
            assert_eq!(
                DetachDecision::new(mounted, minutes(elapsed), health, policy),
                expected,
                "mounted {mounted}, {elapsed} min, ready {ready}, taint {out_of_service}"
            );
        }
    }
}
