//! The lifecycle of the pods on one node, as a pure state machine beside the volume manager.
//!
//! Invariants: a pod starts only with all its volumes mounted; its volumes are unmounted only after its containers
//! ended; its object is removed only after its volumes were unmounted.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::mount_spec::MountSpec;
use super::pod_status::ResolveError;
use super::volume_manager::VolumeManager;
use crate::pod;

/// Minimum delay between two events about volumes that could not be resolved.
const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// Delay before the volumes of a pod are resolved again.
const RESOLVE_RETRY: Duration = Duration::from_millis(100);

/// The next action for a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PodAction {
    /// Resolve its volumes; completed by [`PodWorkers::resolved`].
    Resolve(Box<Pod>),
    /// Report that it runs; completed by [`PodWorkers::started`].
    Start(Box<Pod>),
    /// Stop its containers, or record that they exited with this code, and report the status; completed by
    /// [`PodWorkers::stopped`].
    Stop(Box<Pod>, i32),
    /// Delete the Pod object; completed by the watch event.
    Remove(Box<Pod>),
    /// Record an event about volumes that could not be resolved. As upstream, a timeout alone is not recorded.
    ReportFailedMount(Box<Pod>, String),
}

/// The pods of one node by UID.
#[derive(Debug, Default)]
pub(crate) struct PodWorkers {
    pods: BTreeMap<String, PodState>,
}

#[derive(Debug)]
struct PodState {
    pod: Pod,
    phase: Phase,
    /// Exit code of its containers.
    exited: Option<i32>,
    /// The node lifecycle controller marked the running pod as not ready.
    marked_not_ready: bool,
    resolve_attempts: u32,
    /// When to resolve the volumes again.
    due: Option<Instant>,
    /// Message of the event about volumes that could not be resolved.
    report: Option<String>,
    next_report: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Resolving,
    WaitsForVolumes,
    Starting,
    Running,
    Stopping,
    Stopped,
    Removing,
}

// === impl PodWorkers ===

impl PodWorkers {
    /// The pod is assigned to this node, or changed.
    pub(crate) fn apply(&mut self, pod: Pod) {
        let state = self
            .pods
            .entry(pod::uid(&pod).to_owned())
            .or_insert_with(|| PodState {
                phase: if pod::is_finished(&pod) {
                    Phase::Stopped
                } else {
                    Phase::New
                },
                pod: Pod::default(),
                exited: None,
                marked_not_ready: false,
                resolve_attempts: 0,
                due: None,
                report: None,
                next_report: None,
            });
        state.marked_not_ready = state.phase == Phase::Running && pod::ready_status(&pod) == Some("False");
        state.pod = pod;
    }

    /// The Pod object was deleted; its containers end.
    pub(crate) fn remove(&mut self, uid: &str, volumes: &mut VolumeManager) {
        self.pods.remove(uid);
        volumes.delete_pod(uid);
    }

    /// Removes pods that are not in `listed`.
    pub(crate) fn keep_only(&mut self, listed: &[String], volumes: &mut VolumeManager) {
        let gone: Vec<String> = self
            .pods
            .keys()
            .filter(|uid| !listed.contains(*uid))
            .cloned()
            .collect();
        for uid in gone {
            self.remove(&uid, volumes);
        }
    }

    /// The pod's volumes were resolved, or resolving them failed.
    pub(crate) fn resolved(
        &mut self,
        uid: &str,
        specs: Result<Vec<MountSpec>, ResolveError>,
        volumes: &mut VolumeManager,
        now: Instant,
    ) {
        let Some(state) = self.pods.get_mut(uid) else {
            return;
        };
        if state.phase != Phase::Resolving {
            return;
        }
        state.resolve_attempts += 1;
        match specs {
            Ok(specs) => {
                state.phase = Phase::WaitsForVolumes;
                for spec in specs {
                    volumes.add_pod_to_volume(uid, spec);
                }
            }
            Err(error) => {
                state.phase = Phase::New;
                state.due = Some(now + RESOLVE_RETRY);
                if state.next_report.is_none_or(|next| now >= next) {
                    state.next_report = Some(now + REPORT_PERIOD);
                    state.report = Some(error.message(&state.pod));
                }
            }
        }
    }

    /// The pod was reported as running.
    pub(crate) fn started(&mut self, uid: &str) {
        self.set_phase(uid, Phase::Starting, Phase::Running);
    }

    /// The containers of a running pod exited; the pod continues if its restart policy restarts them.
    pub(crate) fn exited(&mut self, uid: &str, code: i32) {
        if let Some(state) = self.pods.get_mut(uid)
            && !pod::restarts_containers(&state.pod, code)
        {
            state.exited = Some(code);
        }
    }

    /// The pod's containers have ended.
    pub(crate) fn stopped(&mut self, uid: &str, volumes: &mut VolumeManager) {
        self.set_phase(uid, Phase::Stopping, Phase::Stopped);
        volumes.delete_pod(uid);
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid).map(|state| &state.pod)
    }

    /// Whether the volumes of every pod were resolved at least once, or failed to.
    pub(crate) fn all_resolved_once(&self) -> bool {
        self.pods
            .values()
            .all(|state| state.resolve_attempts > 0 || !matches!(state.phase, Phase::New | Phase::Resolving))
    }

    /// Rejects a pod that cannot run on this node: it is reported as failed and keeps no volumes.
    pub(crate) fn reject(&mut self, uid: &str, volumes: &mut VolumeManager) -> Option<&Pod> {
        let state = self.pods.get_mut(uid)?;
        if !matches!(
            state.phase,
            Phase::New | Phase::Resolving | Phase::WaitsForVolumes
        ) {
            return None;
        }
        state.phase = Phase::Stopped;
        volumes.delete_pod(uid);
        Some(&state.pod)
    }

    /// All actions that are possible now; each is returned once.
    pub(crate) fn actions(&mut self, volumes: &mut VolumeManager, now: Instant) -> Vec<PodAction> {
        let mut actions = Vec::new();
        for (uid, state) in &mut self.pods {
            if let Some(action) = state.next_action(uid, volumes, now) {
                actions.push(action);
            }
        }
        actions
    }

    /// When [`Self::actions`] must be called again if no event occurs.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.pods
            .values()
            .filter(|state| state.phase == Phase::New)
            .filter_map(|state| state.due)
            .min()
    }

    fn set_phase(&mut self, uid: &str, from: Phase, to: Phase) {
        if let Some(state) = self.pods.get_mut(uid).filter(|state| state.phase == from) {
            state.phase = to;
        }
    }
}

// === impl PodState ===

impl PodState {
    fn next_action(&mut self, uid: &str, volumes: &mut VolumeManager, now: Instant) -> Option<PodAction> {
        let leaving = pod::is_deleting(&self.pod);
        if let Some(message) = self.report.take() {
            return Some(PodAction::ReportFailedMount(Box::new(self.pod.clone()), message));
        }
        let pod = || Box::new(self.pod.clone());
        let (phase, action) = match self.phase {
            Phase::New if !leaving && self.due.is_none_or(|due| now >= due) => {
                (Phase::Resolving, PodAction::Resolve(pod()))
            }
            Phase::WaitsForVolumes if !leaving => {
                if !volumes.all_mounted(uid) {
                    return None;
                }
                (Phase::Starting, PodAction::Start(pod()))
            }
            Phase::Running if leaving || self.exited.is_some() => {
                let code = self.exited.unwrap_or_default();
                (Phase::Stopping, PodAction::Stop(pod(), code))
            }
            Phase::Running if self.marked_not_ready => {
                self.marked_not_ready = false;
                (Phase::Starting, PodAction::Start(pod()))
            }
            // The pod has no running containers to stop.
            Phase::New | Phase::Resolving | Phase::WaitsForVolumes | Phase::Stopped if leaving => {
                volumes.delete_pod(uid);
                if volumes.has_mounts(uid) {
                    self.phase = Phase::Stopped;
                    return None;
                }
                (Phase::Removing, PodAction::Remove(pod()))
            }
            Phase::New
            | Phase::Resolving
            | Phase::WaitsForVolumes
            | Phase::Starting
            | Phase::Running
            | Phase::Stopping
            | Phase::Stopped
            | Phase::Removing => return None,
        };
        self.phase = phase;
        Some(action)
    }
}

#[cfg(test)]
mod tests;
