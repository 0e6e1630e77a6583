//! The life of the pods on one node, as a pure state machine beside the volume manager.
//!
//! Invariants: a pod starts only with all its volumes mounted; its volumes are unmounted only after its containers
//! ended; its object is removed only after its volumes were unmounted.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::mount_spec::MountSpec;
use super::volume_manager::VolumeManager;
use crate::pod;

/// How long a pod waits for its volumes before an event says so.
const MOUNT_TIMEOUT: Duration = Duration::from_secs(123);
/// Delay before the volumes of a pod are looked for again.
const RESOLVE_RETRY: Duration = Duration::from_millis(100);

/// What has to be done for a pod next.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PodAction {
    /// Find out which volumes it has; answered by [`PodWorkers::resolved`].
    Resolve(Box<Pod>),
    /// Report that it runs; answered by [`PodWorkers::started`].
    Start(Box<Pod>),
    /// End its containers and report it; answered by [`PodWorkers::stopped`].
    Stop(Box<Pod>),
    /// Remove its object; the watch answers.
    Remove(Box<Pod>),
    /// Tell that it waits for volumes.
    ReportTimeout(Box<Pod>, String),
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
    resolve_attempts: u32,
    /// When to look for volumes again, or to report that they are missing.
    due: Option<Instant>,
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
                resolve_attempts: 0,
                due: None,
            });
        state.pod = pod;
    }

    /// The pod's object is gone; its containers end with it.
    pub(crate) fn remove(&mut self, uid: &str, volumes: &mut VolumeManager) {
        self.pods.remove(uid);
        volumes.delete_pod(uid);
    }

    /// Pods that are not in `listed` are gone.
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

    /// The pod's volumes are known, or not yet.
    pub(crate) fn resolved(
        &mut self,
        uid: &str,
        specs: Option<Vec<MountSpec>>,
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
            Some(specs) => {
                state.phase = Phase::WaitsForVolumes;
                state.due = Some(now + MOUNT_TIMEOUT);
                for spec in specs {
                    volumes.add_pod_to_volume(uid, spec);
                }
            }
            None => {
                state.phase = Phase::New;
                state.due = Some(now + RESOLVE_RETRY);
            }
        }
    }

    /// The pod was reported as running.
    pub(crate) fn started(&mut self, uid: &str) {
        self.set_phase(uid, Phase::Starting, Phase::Running);
    }

    /// The pod's containers have ended.
    pub(crate) fn stopped(&mut self, uid: &str, volumes: &mut VolumeManager) {
        self.set_phase(uid, Phase::Stopping, Phase::Stopped);
        volumes.delete_pod(uid);
    }

    pub(crate) fn get(&self, uid: &str) -> Option<&Pod> {
        self.pods.get(uid).map(|state| &state.pod)
    }

    /// Whether the volumes of every pod were looked for at least once.
    pub(crate) fn all_resolved_once(&self) -> bool {
        self.pods
            .values()
            .all(|state| state.resolve_attempts > 0 || !matches!(state.phase, Phase::New | Phase::Resolving))
    }

    /// Fails a pod that cannot run here: it is reported as failed and keeps no volumes.
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

    /// Everything that can be done now; each action is given out once.
    pub(crate) fn actions(&mut self, volumes: &mut VolumeManager, now: Instant) -> Vec<PodAction> {
        let mut actions = Vec::new();
        for (uid, state) in &mut self.pods {
            if let Some(action) = state.next_action(uid, volumes, now) {
                actions.push(action);
            }
        }
        actions
    }

    /// When [`Self::actions`] must be asked again although nothing happened.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.pods
            .values()
            .filter(|state| matches!(state.phase, Phase::New | Phase::WaitsForVolumes))
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
        let pod = || Box::new(self.pod.clone());
        let (phase, action) = match self.phase {
            Phase::New if !leaving && self.due.is_none_or(|due| now >= due) => {
                (Phase::Resolving, PodAction::Resolve(pod()))
            }
            Phase::WaitsForVolumes if !leaving => {
                let unmounted = volumes.unmounted_volumes(uid);
                if unmounted.is_empty() {
                    (Phase::Starting, PodAction::Start(pod()))
                } else if self.due.is_some_and(|due| now >= due) {
                    self.due = Some(now + MOUNT_TIMEOUT);
                    let message = format!(
                        "Unable to attach or mount volumes: unmounted volumes=[{}], unattached volumes=[], \
                         failed to process volumes=[]: context deadline exceeded",
                        unmounted.join(" ")
                    );
                    return Some(PodAction::ReportTimeout(Box::new(self.pod.clone()), message));
                } else {
                    return None;
                }
            }
            Phase::Running if leaving => (Phase::Stopping, PodAction::Stop(pod())),
            // Without containers there is nothing to stop.
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
mod tests {
    use super::super::mount_spec::tests::mk_spec;
    use super::super::volume_manager::Outcome;
    use super::*;

    fn mk_pod(deleting: bool) -> Pod {
        let mut pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "p", "namespace": "default", "uid": "uid-1"},
            "spec": {"nodeName": "a", "containers": []},
        }))
        .unwrap();
        if deleting {
            pod.metadata.deletion_timestamp =
                serde_json::from_value(serde_json::json!("2026-01-01T00:00:00Z")).unwrap();
        }
        pod
    }

    fn name(action: &PodAction) -> &'static str {
        match action {
            PodAction::Resolve(_) => "resolve",
            PodAction::Start(_) => "start",
            PodAction::Stop(_) => "stop",
            PodAction::Remove(_) => "remove",
            PodAction::ReportTimeout(..) => "timeout",
        }
    }

    fn run_volumes(volumes: &mut VolumeManager, now: Instant) {
        loop {
            let in_use = volumes.volumes_in_use();
            volumes.mark_volumes_as_reported_in_use(&in_use);
            let started = volumes.reconcile(now);
            if started.is_empty() {
                return;
            }
            for operation in started {
                volumes.finish(&operation, Outcome::Done, now);
            }
        }
    }

    #[test]
    fn pod_runs_with_its_volumes_and_goes_after_them() {
        let (mut pods, mut volumes, now) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
        let step = |pods: &mut PodWorkers, volumes: &mut VolumeManager| -> Vec<&'static str> {
            pods.actions(volumes, now).iter().map(name).collect()
        };
        pods.apply(mk_pod(false));
        assert_eq!(step(&mut pods, &mut volumes), ["resolve"]);
        assert!(!pods.all_resolved_once());
        pods.resolved("uid-1", Some(vec![mk_spec()]), &mut volumes, now);
        assert!(pods.all_resolved_once());
        assert_eq!(step(&mut pods, &mut volumes), [""; 0], "waits for the volume");
        run_volumes(&mut volumes, now);
        assert_eq!(step(&mut pods, &mut volumes), ["start"]);
        pods.started("uid-1");

        pods.apply(mk_pod(true));
        assert_eq!(step(&mut pods, &mut volumes), ["stop"]);
        run_volumes(&mut volumes, now);
        assert!(volumes.has_mounts("uid-1"), "its containers still run");
        pods.stopped("uid-1", &mut volumes);
        assert_eq!(
            step(&mut pods, &mut volumes),
            [""; 0],
            "its volume is still mounted"
        );
        run_volumes(&mut volumes, now);
        assert_eq!(step(&mut pods, &mut volumes), ["remove"]);
        assert_eq!(step(&mut pods, &mut volumes), [""; 0], "given out once");
    }

    #[test]
    fn pod_without_its_volumes_is_reported_and_can_be_deleted() {
        let (mut pods, mut volumes, now) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
        pods.apply(mk_pod(false));
        pods.actions(&mut volumes, now);
        pods.resolved("uid-1", Some(vec![mk_spec()]), &mut volumes, now);
        assert_eq!(pods.next_due(), Some(now + MOUNT_TIMEOUT));
        let later = now + MOUNT_TIMEOUT;
        let actions = pods.actions(&mut volumes, later);
        assert!(
            matches!(&actions[..], [PodAction::ReportTimeout(_, text)] if text.contains("unmounted volumes=[pv]"))
        );
        pods.apply(mk_pod(true));
        assert_eq!(
            pods.actions(&mut volumes, later)
                .iter()
                .map(name)
                .collect::<Vec<_>>(),
            ["remove"]
        );
        assert!(volumes.volumes_in_use().is_empty());
    }

    #[test]
    fn pod_that_is_gone_leaves_its_volumes_to_be_unmounted() {
        let (mut pods, mut volumes, now) = (PodWorkers::default(), VolumeManager::default(), Instant::now());
        pods.apply(mk_pod(false));
        pods.actions(&mut volumes, now);
        pods.resolved("uid-1", Some(vec![mk_spec()]), &mut volumes, now);
        run_volumes(&mut volumes, now);
        pods.keep_only(&[], &mut volumes);
        run_volumes(&mut volumes, now);
        assert!(volumes.volumes_in_use().is_empty());
        assert!(pods.actions(&mut volumes, now).is_empty());
    }
}
