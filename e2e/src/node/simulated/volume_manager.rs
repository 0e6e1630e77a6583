//! What a kubelet's volume manager decides, as a pure state machine.
//!
//! Reports from the outside go in through [`VolumeManager::apply`], what is to be done next comes out of
//! [`VolumeManager::reconcile`]. Nothing here reads a clock or does I/O.
//!
//! Invariants, the ones the attach/detach controller relies on:
//! - a volume is mounted only after the API server has it in this node's `volumesInUse` and the controller
//!   has it in `volumesAttached`;
//! - it leaves `volumesInUse` only after it was unmounted;
//! - it is unmounted only after the containers of the pods that had it were stopped;
//! - a deleted pod is finished only after its volumes are unmounted and no longer reported as in use.

use std::collections::{BTreeMap, BTreeSet};

/// UID of a pod.
pub type PodUid = String;

/// Name of a volume as nodes report it: `kubernetes.io/csi/<driver>^<handle>`.
pub type UniqueName = String;

/// A pod assigned to this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodKey {
    /// UID, which differs for a re-created pod.
    pub uid: PodUid,
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
}

/// A volume some pod of this node wants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumeKey {
    /// Name under which nodes report the volume.
    pub unique_name: UniqueName,
    /// Name of its CSI driver.
    pub driver: String,
    /// The driver's id of the volume.
    pub handle: String,
    /// The PersistentVolume's `volumeAttributes`.
    pub attributes: BTreeMap<String, String>,
    /// The PersistentVolume's `accessModes`.
    pub access_modes: Vec<String>,
    /// Whether it is a raw block volume.
    pub block: bool,
}

/// News for the volume manager.
#[derive(Clone, Debug)]
pub enum Report {
    /// A pod is assigned to this node (repeated news are harmless).
    Assigned(PodKey),
    /// Its deletion was asked for.
    Deleting(PodUid),
    /// Its object is gone from the API.
    Gone(PodUid),
    /// The pod's volumes are known.
    Resolved(PodUid, Vec<VolumeKey>),
    /// The node's `volumesAttached`, whole.
    Attached(BTreeSet<UniqueName>),
    /// The API server stored this `volumesInUse`.
    InUseStored(BTreeSet<UniqueName>),
    /// The volume is mounted.
    Mounted(UniqueName),
    /// The mount failed and may be tried again.
    MountFailed(UniqueName),
    /// The volume is unmounted.
    Unmounted(UniqueName),
    /// The pod's status says Running.
    Started(PodUid),
    /// The pod's containers ended and its status says so.
    Stopped(PodUid),
}

/// What is to be done next. Each is given out once and answered by a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Find out the pod's volumes; answered by `Resolved`.
    Resolve(PodKey),
    /// Store this `volumesInUse`; answered by `InUseStored`.
    StoreInUse(BTreeSet<UniqueName>),
    /// Mount the volume; answered by `Mounted` or `MountFailed`.
    Mount(VolumeKey),
    /// Tell the API that the pod runs; answered by `Started`.
    Start(PodKey),
    /// End the pod's containers and update its status; answered by `Stopped`.
    Stop(PodKey),
    /// Unmount the volume; answered by `Unmounted`.
    Unmount(VolumeKey),
    /// Remove the pod's object for good; answered by `Gone`, from the watch.
    Finish(PodKey),
}

/// The state of one node's pods and volumes.
#[derive(Debug, Default)]
pub struct VolumeManager {
    pods: BTreeMap<PodUid, PodState>,
    volumes: BTreeMap<UniqueName, VolumeState>,
    attached: BTreeSet<UniqueName>,
    in_use: BTreeSet<UniqueName>,
    /// The `volumesInUse` on its way to the API server: until it is answered, either may be what is stored.
    storing: Option<BTreeSet<UniqueName>>,
}

#[derive(Debug)]
struct PodState {
    key: PodKey,
    phase: PodPhase,
    leaving: bool,
    volumes: BTreeSet<UniqueName>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodPhase {
    New,
    Resolving,
    WaitsForVolumes,
    Starting,
    Running,
    Stopping,
    Stopped,
    Finishing,
}

#[derive(Debug)]
struct VolumeState {
    key: VolumeKey,
    users: BTreeSet<PodUid>,
    mount: Mount,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mount {
    Absent,
    Mounting,
    Present,
    Unmounting,
}

// === impl VolumeManager ===

impl VolumeManager {
    /// Takes in one piece of news.
    pub fn apply(&mut self, report: Report) {
        match report {
            Report::Assigned(key) => {
                self.pods
                    .entry(key.uid.clone())
                    .or_insert_with(|| PodState::new(key));
            }
            Report::Deleting(uid) => self.leave(&uid),
            Report::Gone(uid) => {
                self.pods.remove(&uid);
                self.release(&uid);
            }
            Report::Resolved(uid, volumes) => self.resolved(&uid, volumes),
            Report::Attached(attached) => self.attached = attached,
            Report::InUseStored(stored) => {
                self.in_use = stored;
                self.storing = None;
            }
            Report::Mounted(name) => self.set_mount(&name, Mount::Present),
            Report::MountFailed(name) | Report::Unmounted(name) => self.set_mount(&name, Mount::Absent),
            Report::Started(uid) => {
                if let Some(pod) = self
                    .pods
                    .get_mut(&uid)
                    .filter(|pod| pod.phase == PodPhase::Starting)
                {
                    pod.phase = PodPhase::Running;
                }
            }
            Report::Stopped(uid) => {
                if let Some(pod) = self
                    .pods
                    .get_mut(&uid)
                    .filter(|pod| pod.phase == PodPhase::Stopping)
                {
                    pod.phase = PodPhase::Stopped;
                    self.release(&uid);
                }
            }
        }
    }

    /// Everything that can be done now and was not given out before.
    pub fn reconcile(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        self.mount_and_unmount(&mut actions);
        self.volumes
            .retain(|_, volume| volume.mount != Mount::Absent || !volume.users.is_empty());
        let in_use: BTreeSet<_> = self.volumes.keys().cloned().collect();
        if self.storing.is_none() && in_use != self.in_use {
            self.storing = Some(in_use.clone());
            actions.push(Action::StoreInUse(in_use));
        }
        self.move_pods_on(&mut actions);
        actions
    }

    /// Whether no pod and no volume is left on the node.
    pub fn is_idle(&self) -> bool {
        self.pods.is_empty() && self.volumes.is_empty() && self.in_use.is_empty() && self.storing.is_none()
    }

    /// Whether the API server has the volume in `volumesInUse` and no write on its way takes it out.
    fn surely_in_use(&self, name: &str) -> bool {
        self.in_use.contains(name) && self.storing.as_ref().is_none_or(|storing| storing.contains(name))
    }

    /// Whether the API server may have the volume in `volumesInUse`, now or after the write on its way.
    fn maybe_in_use(&self, name: &str) -> bool {
        self.in_use.contains(name)
            || self
                .storing
                .as_ref()
                .is_some_and(|storing| storing.contains(name))
    }

    fn leave(&mut self, uid: &str) {
        let Some(pod) = self.pods.get_mut(uid) else { return };
        pod.leaving = true;
        let has_containers = matches!(
            pod.phase,
            PodPhase::Starting | PodPhase::Running | PodPhase::Stopping
        );
        if !has_containers {
            self.release(uid);
        }
    }

    fn release(&mut self, uid: &str) {
        for volume in self.volumes.values_mut() {
            volume.users.remove(uid);
        }
    }

    fn resolved(&mut self, uid: &str, volumes: Vec<VolumeKey>) {
        let Some(pod) = self.pods.get_mut(uid).filter(|pod| !pod.leaving) else {
            return;
        };
        pod.phase = PodPhase::WaitsForVolumes;
        for key in volumes {
            pod.volumes.insert(key.unique_name.clone());
            self.volumes
                .entry(key.unique_name.clone())
                .or_insert_with(|| VolumeState {
                    key,
                    users: BTreeSet::new(),
                    mount: Mount::Absent,
                })
                .users
                .insert(uid.to_owned());
        }
    }

    fn set_mount(&mut self, name: &str, mount: Mount) {
        if let Some(volume) = self.volumes.get_mut(name) {
            volume.mount = mount;
        }
    }

    fn mount_and_unmount(&mut self, actions: &mut Vec<Action>) {
        let mountable: BTreeSet<UniqueName> = self
            .attached
            .iter()
            .filter(|name| self.surely_in_use(name))
            .cloned()
            .collect();
        for (name, volume) in &mut self.volumes {
            match volume.mount {
                Mount::Absent if !volume.users.is_empty() && mountable.contains(name) => {
                    volume.mount = Mount::Mounting;
                    actions.push(Action::Mount(volume.key.clone()));
                }
                Mount::Present if volume.users.is_empty() => {
                    volume.mount = Mount::Unmounting;
                    actions.push(Action::Unmount(volume.key.clone()));
                }
                Mount::Absent | Mount::Present | Mount::Mounting | Mount::Unmounting => {}
            }
        }
    }

    fn move_pods_on(&mut self, actions: &mut Vec<Action>) {
        let due: Vec<(PodUid, PodPhase)> = self
            .pods
            .iter()
            .filter_map(|(uid, pod)| Some((uid.clone(), self.next_phase(pod)?)))
            .collect();
        for (uid, phase) in due {
            let Some(pod) = self.pods.get_mut(&uid) else {
                continue;
            };
            pod.phase = phase;
            match phase {
                PodPhase::Resolving => actions.push(Action::Resolve(pod.key.clone())),
                PodPhase::Starting => actions.push(Action::Start(pod.key.clone())),
                PodPhase::Stopping => actions.push(Action::Stop(pod.key.clone())),
                PodPhase::Finishing => actions.push(Action::Finish(pod.key.clone())),
                PodPhase::New | PodPhase::WaitsForVolumes | PodPhase::Running | PodPhase::Stopped => {}
            }
        }
    }

    fn next_phase(&self, pod: &PodState) -> Option<PodPhase> {
        match (pod.phase, pod.leaving) {
            (PodPhase::New, false) => Some(PodPhase::Resolving),
            (PodPhase::WaitsForVolumes, false) => pod
                .volumes
                .iter()
                .all(|name| {
                    self.volumes
                        .get(name)
                        .is_some_and(|volume| volume.mount == Mount::Present)
                })
                .then_some(PodPhase::Starting),
            (PodPhase::Running, true) => Some(PodPhase::Stopping),
            (PodPhase::New | PodPhase::Resolving | PodPhase::WaitsForVolumes | PodPhase::Stopped, true) => {
                self.is_released(pod).then_some(PodPhase::Finishing)
            }
            (PodPhase::Resolving | PodPhase::Running, false)
            | (PodPhase::Starting | PodPhase::Stopping | PodPhase::Stopped | PodPhase::Finishing, _) => None,
        }
    }

    fn is_released(&self, pod: &PodState) -> bool {
        pod.volumes.iter().all(|name| match self.volumes.get(name) {
            Some(volume) => !volume.users.is_empty(),
            None => !self.maybe_in_use(name),
        })
    }
}

// === impl PodState ===

impl PodState {
    fn new(key: PodKey) -> Self {
        Self {
            key,
            phase: PodPhase::New,
            leaving: false,
            volumes: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests;
