//! The lifecycle of the pods on one node, as a pure state machine beside the volume manager.
//!
//! Invariants: a pod starts only with all its volumes mounted; its volumes are unmounted only after its containers
//! ended; its object is removed only after its volumes were unmounted.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::desired_state_of_world_populator::ResolveError;
use super::mount_spec::MountSpec;
use super::volume_manager::VolumeManager;
use crate::pod;

/// Minimum delay between two events about volumes that could not be resolved.
const REPORT_PERIOD: Duration = Duration::from_secs(10);
/// Delay before the volumes of a pod are resolved again.
const RESOLVE_RETRY: Duration = Duration::from_millis(100);
/// How long volumes may stay unresolved without an event: upstream's `podAttachAndMountRetryInterval`.
const REPORT_DELAY: Duration = Duration::from_millis(300);

/// How long a pod waits for its volumes before the attach limit is verified: upstream's `podAttachAndMountTimeout`.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(123);

/// The next action for a pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PodAction {
    /// Resolve its volumes; completed by [`PodWorkers::resolved`].
    Resolve(Box<Pod>),
    /// Verify that its volumes are not beyond the attach limit: they were not mounted in time.
    VerifyAttachLimit(Box<Pod>),
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
    pods: BTreeMap<String, PodWorker>,
}

#[derive(Debug)]
struct PodWorker {
    pod: Pod,
    state: State,
    /// Exit code of its containers.
    exited: Option<i32>,
    /// The node lifecycle controller marked the running pod as not ready.
    marked_not_ready: bool,
    resolve_attempts: u32,
    /// When to resolve the volumes again, or when they should be mounted.
    due: Option<Instant>,
    /// Message of the event about volumes that could not be resolved.
    report: Option<String>,
    next_report: Option<Instant>,
}

/// The state of a pod's worker, which is not the phase in the pod's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
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
        let worker = self
            .pods
            .entry(pod::uid(&pod).to_owned())
            .or_insert_with(|| PodWorker {
                state: if pod::is_finished(&pod) {
                    State::Stopped
                } else {
                    State::New
                },
                pod: Pod::default(),
                exited: None,
                marked_not_ready: false,
                resolve_attempts: 0,
                due: None,
                report: None,
                next_report: None,
            });
        worker.marked_not_ready = worker.state == State::Running && pod::ready_status(&pod) == Some("False");
        worker.pod = pod;
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
        let Some(worker) = self.pods.get_mut(uid) else {
            return;
        };
        if worker.state != State::Resolving {
            return;
        }
        worker.resolve_attempts += 1;
        match specs {
            Ok(specs) => {
                worker.state = State::WaitsForVolumes;
                worker.due = Some(now + MOUNT_TIMEOUT);
                for spec in specs {
                    volumes.add_pod_to_volume(uid, spec);
                }
            }
            Err(error) => {
                worker.state = State::New;
                worker.due = Some(now + RESOLVE_RETRY);
                if now >= *worker.next_report.get_or_insert(now + REPORT_DELAY) {
                    worker.next_report = Some(now + REPORT_PERIOD);
                    worker.report = Some(error.message(&worker.pod));
                }
            }
        }
    }

    /// The pod was reported as running.
    pub(crate) fn started(&mut self, uid: &str) {
        self.set_state(uid, State::Starting, State::Running);
    }

    /// The containers of a running pod exited; the pod continues if its restart policy restarts them.
    pub(crate) fn exited(&mut self, uid: &str, code: i32) {
        if let Some(worker) = self.pods.get_mut(uid)
            && !pod::restarts_containers(&worker.pod, code)
        {
            worker.exited = Some(code);
        }
    }

    /// The pod's containers have ended.
    pub(crate) fn stopped(&mut self, uid: &str, volumes: &mut VolumeManager) {
        self.set_state(uid, State::Stopping, State::Stopped);
        volumes.delete_pod(uid);
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid).map(|worker| &worker.pod)
    }

    /// Whether the volumes of every pod were resolved at least once, or failed to.
    pub(crate) fn all_resolved_once(&self) -> bool {
        self.pods.values().all(|worker| {
            worker.resolve_attempts > 0 || !matches!(worker.state, State::New | State::Resolving)
        })
    }

    /// Rejects a pod that cannot run on this node: it is reported as failed and keeps no volumes.
    pub(crate) fn reject(&mut self, uid: &str, volumes: &mut VolumeManager) -> Option<&Pod> {
        let worker = self.pods.get_mut(uid)?;
        if !matches!(
            worker.state,
            State::New | State::Resolving | State::WaitsForVolumes
        ) {
            return None;
        }
        worker.state = State::Stopped;
        volumes.delete_pod(uid);
        Some(&worker.pod)
    }

    /// All actions that are possible now; each is returned once.
    pub(crate) fn actions(&mut self, volumes: &mut VolumeManager, now: Instant) -> Vec<PodAction> {
        let mut actions = Vec::new();
        for (uid, worker) in &mut self.pods {
            if let Some(action) = worker.next_action(uid, volumes, now) {
                actions.push(action);
            }
        }
        actions
    }

    /// When [`Self::actions`] must be called again if no event occurs.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.pods
            .values()
            .filter(|worker| matches!(worker.state, State::New | State::WaitsForVolumes))
            .filter_map(|worker| worker.due)
            .min()
    }

    fn set_state(&mut self, uid: &str, from: State, to: State) {
        if let Some(worker) = self.pods.get_mut(uid).filter(|worker| worker.state == from) {
            worker.state = to;
        }
    }
}

// === impl PodWorker ===

impl PodWorker {
    fn next_action(&mut self, uid: &str, volumes: &mut VolumeManager, now: Instant) -> Option<PodAction> {
        let leaving = pod::is_deleting(&self.pod);
        if let Some(message) = self.report.take() {
            return Some(PodAction::ReportFailedMount(Box::new(self.pod.clone()), message));
        }
        let pod = || Box::new(self.pod.clone());
        let (state, action) = match self.state {
            State::New if !leaving && self.due.is_none_or(|due| now >= due) => {
                (State::Resolving, PodAction::Resolve(pod()))
            }
            State::WaitsForVolumes if !leaving => {
                if volumes.all_mounted(uid) {
                    (State::Starting, PodAction::Start(pod()))
                } else if self.due.is_some_and(|due| now >= due) {
                    self.due = Some(now + MOUNT_TIMEOUT);
                    (State::WaitsForVolumes, PodAction::VerifyAttachLimit(pod()))
                } else {
                    return None;
                }
            }
            State::Running if leaving || self.exited.is_some() => {
                let code = self.exited.unwrap_or_default();
                (State::Stopping, PodAction::Stop(pod(), code))
            }
            State::Running if self.marked_not_ready => {
                self.marked_not_ready = false;
                (State::Starting, PodAction::Start(pod()))
            }
            // The pod has no running containers to stop.
            State::New | State::Resolving | State::WaitsForVolumes | State::Stopped if leaving => {
                volumes.delete_pod(uid);
                if volumes.has_mounts(uid) {
                    self.state = State::Stopped;
                    return None;
                }
                (State::Removing, PodAction::Remove(pod()))
            }
            State::New
            | State::Resolving
            | State::WaitsForVolumes
            | State::Starting
            | State::Running
            | State::Stopping
            | State::Stopped
            | State::Removing => return None,
        };
        self.state = state;
        Some(action)
    }
}

#[cfg(test)]
mod tests;
