//! Random schedules of pods: steps of users, kubelets and an attacher.
//!
//! Schedules omit steps whose outcome is random or slow in the real controller: it iterates over Go maps, so at most one node
//! may wait for a single-node volume, and it waits for two minutes if the VolumeAttachment vanishes during an attach.
//!
//! Half of the steps come in bursts: the next step follows at once, while the controller still attaches or detaches volumes. Two
//! steps of a burst do not concern the same volume, except that a pod may go in the burst in which its attach ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};

use crate::observer::{Attachment, Observed};

/// Nodes of each schedule.
pub(crate) const NODES: usize = 3;
/// Access modes of the volumes of each schedule.
pub(crate) const VOLUMES: [&str; 4] = ["ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"];
/// Maximum number of pods.
const PODS: usize = 6;
/// Number of bursts.
const BURSTS: u32 = 26;
/// Maximum number of steps of a burst.
const BURST_STEPS: usize = 4;
/// Bursts after which a VolumeAttachment that is unattached or being deleted is overdue: kube-controller-manager waits two
/// minutes for the attacher, and its backoff grows with each failure.
const UNSETTLED_BURSTS: u32 = 5;

/// A schedule with the names of its objects.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    pub seed: u64,
    /// Names of its objects begin with this.
    pub prefix: String,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    CreatePod {
        pod: String,
        node: String,
        volumes: Vec<String>,
    },
    /// Without grace period, so that the object is removed immediately.
    DeletePod(String),
    /// The pod's containers exit.
    FinishPod(String),
    /// kubelet writes `volumesInUse`.
    SetInUse(String, BTreeSet<String>),
    SetOutOfService(String, bool),
    /// kubelet reports that its node is ready, or not.
    SetReady(String, bool),
    /// An administrator creates the volume of a claim that pods may wait for.
    CreateVolume(String),
    /// The attacher adds its finalizer and reports success.
    Attach(String),
    /// The attacher adds its finalizer and reports a failure. The number is in its message: the replay waits for the Event with it, so
    /// that the controller does not miss the failure.
    FailAttach(String, u32),
    /// The attacher removes its finalizer.
    Detach(String),
    FailDetach(String),
    /// The attacher detects that the volume is not attached any more.
    LoseAttachment(String),
    /// An administrator deletes the VolumeAttachment.
    DeleteAttachment(String),
}

/// Selects steps that are possible in the current state.
pub(crate) struct Generator {
    schedule: Schedule,
    random: fastrand::Rng,
    bursts: u32,
    created: u32,
    pods: BTreeMap<String, Pod>,
    in_use: BTreeMap<String, BTreeSet<String>>,
    out_of_service: BTreeSet<String>,
    not_ready: BTreeSet<String>,
    is_late_volume_created: bool,
    /// Volumes that were detached without the controller, which may attach them again at any time.
    lost: BTreeSet<String>,
    /// Number of bursts for which each VolumeAttachment has been unattached or deleting.
    unsettled: BTreeMap<String, u32>,
}

struct Pod {
    node: String,
    volumes: Vec<String>,
    is_finished: bool,
}

// === impl Schedule ===

impl Schedule {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            prefix: format!("s{seed}-"),
        }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = String> {
        (0..NODES).map(|number| format!("{}node-{number}", self.prefix))
    }

    /// Names of the PersistentVolumes, which are those of their claims and handles, too.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = String> {
        (0..VOLUMES.len()).map(|number| format!("{}volume-{number}", self.prefix))
    }

    /// The volume that is created later than its claim: one for many nodes.
    pub(crate) fn late_volume(&self) -> String {
        format!("{}volume-{}", self.prefix, VOLUMES.len() - 1)
    }
}

// === impl Step ===

impl Display for Step {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreatePod { pod, node, volumes } => {
                write!(
                    formatter,
                    "create pod {pod} on {node} with {}",
                    volumes.join(", ")
                )
            }
            Self::DeletePod(pod) => write!(formatter, "delete pod {pod}"),
            Self::FinishPod(pod) => write!(formatter, "finish pod {pod}"),
            Self::SetInUse(node, volumes) => write!(formatter, "set volumesInUse of {node} to {volumes:?}"),
            Self::SetOutOfService(node, true) => write!(formatter, "add the out-of-service taint to {node}"),
            Self::SetOutOfService(node, false) => write!(formatter, "remove the taint from {node}"),
            Self::SetReady(node, true) => write!(formatter, "report {node} as ready"),
            Self::SetReady(node, false) => write!(formatter, "report {node} as not ready"),
            Self::CreateVolume(volume) => write!(formatter, "create volume {volume}"),
            Self::Attach(name) => write!(formatter, "attach {name}"),
            Self::FailAttach(name, _) => write!(formatter, "fail the attach of {name}"),
            Self::Detach(name) => write!(formatter, "detach {name}"),
            Self::FailDetach(name) => write!(formatter, "fail the detach of {name}"),
            Self::LoseAttachment(name) => write!(formatter, "report {name} as detached"),
            Self::DeleteAttachment(name) => write!(formatter, "delete {name}"),
        }
    }
}

// === impl Pod ===

impl Pod {
    fn needs(&self, attachment: &Attachment) -> bool {
        !self.is_finished && self.node == attachment.node && self.volumes.contains(&attachment.volume)
    }
}

// === impl Generator ===

impl Generator {
    pub(crate) fn new(schedule: &Schedule) -> Self {
        Self {
            schedule: schedule.clone(),
            random: fastrand::Rng::with_seed(schedule.seed),
            bursts: 0,
            created: 0,
            pods: BTreeMap::new(),
            in_use: BTreeMap::new(),
            out_of_service: BTreeSet::new(),
            not_ready: BTreeSet::new(),
            is_late_volume_created: false,
            lost: BTreeSet::new(),
            unsettled: BTreeMap::new(),
        }
    }

    /// The next steps, which follow each other at once; `None` at the end.
    pub(crate) fn next(&mut self, observed: &Observed) -> Option<Vec<Step>> {
        self.bursts += 1;
        if self.bursts > BURSTS {
            return None;
        }
        let first = match self.overdue_step(observed) {
            Some(step) => step,
            None => self.random_step(observed, |_, _| true)?,
        };
        let mut touched = self.volumes(&first, observed);
        self.apply(&first, observed);
        let mut burst = vec![first];
        let wanted = if self.chance() {
            self.random.usize(2..=BURST_STEPS)
        } else {
            1
        };
        while burst.len() < wanted
            && let Some(before) = &touched
        {
            let may_follow = |generator: &Self, step: &Step| {
                let volumes = generator.volumes(step, observed);
                volumes.is_some_and(|volumes| volumes.is_disjoint(before))
                    || generator.ends_attach(step, &burst, observed)
            };
            let Some(step) = self.random_step(observed, may_follow) else {
                break;
            };
            let volumes = self.volumes(&step, observed);
            touched = touched.zip(volumes).map(|(before, volumes)| &before | &volumes);
            self.apply(&step, observed);
            burst.push(step);
        }
        Some(burst)
    }

    fn chance(&mut self) -> bool {
        self.random.bool()
    }

    /// The volumes that a step concerns; `None` if it concerns all volumes of a node.
    fn volumes(&self, step: &Step, observed: &Observed) -> Option<BTreeSet<String>> {
        let of_pod = |pod: &String| {
            self.pods
                .get(pod)
                .map(|pod| pod.volumes.clone())
                .unwrap_or_default()
        };
        let volumes = match step {
            Step::CreatePod { volumes, .. } => volumes.clone(),
            Step::DeletePod(pod) | Step::FinishPod(pod) => of_pod(pod),
            Step::SetInUse(node, in_use) => {
                let before = self.in_use.get(node).cloned().unwrap_or_default();
                let changed = self.schedule.volumes().filter(|volume| {
                    let name = unique_name(volume);
                    in_use.contains(&name) != before.contains(&name)
                });
                changed.collect()
            }
            Step::CreateVolume(volume) => vec![volume.clone()],
            Step::Attach(name)
            | Step::FailAttach(name, _)
            | Step::Detach(name)
            | Step::FailDetach(name)
            | Step::LoseAttachment(name)
            | Step::DeleteAttachment(name) => {
                let found = observed.present().find(|(present, _)| *present == name);
                found.map(|(_, state)| state.volume.clone()).into_iter().collect()
            }
            Step::SetOutOfService(..) | Step::SetReady(..) => return None,
        };
        Some(volumes.into_iter().collect())
    }

    /// Whether the step ends the only pod of an attach that ends in the same burst, and concerns no other volume of the burst.
    fn ends_attach(&self, step: &Step, burst: &[Step], observed: &Observed) -> bool {
        let (Step::DeletePod(name) | Step::FinishPod(name)) = step else {
            return false;
        };
        let Some(pod) = self.pods.get(name) else {
            return false;
        };
        let [Step::Attach(attachment) | Step::FailAttach(attachment, _)] = burst else {
            return false;
        };
        let attached = observed.present().find(|(present, _)| *present == attachment);
        let is_needed = |state: &Attachment| self.pods.values().filter(|pod| pod.needs(state)).count() == 1;
        attached.is_some_and(|(_, state)| pod.needs(state) && is_needed(state))
    }

    /// Counts the bursts of unsettled VolumeAttachments, and returns a step towards settling the one that is overdue the longest.
    fn overdue_step(&mut self, observed: &Observed) -> Option<Step> {
        let unsettled = observed
            .present()
            .filter(|(_, state)| state.is_deleting || !state.is_attached);
        let bursts_since = |name| self.unsettled.get(name).map_or(0, |bursts| bursts + 1);
        self.unsettled = unsettled
            .map(|(name, _)| (name.clone(), bursts_since(name)))
            .collect();
        let is_overdue = |(_, bursts): &(&String, &u32)| **bursts >= UNSETTLED_BURSTS;
        let overdue = self.unsettled.iter().filter(is_overdue);
        let (name, _) = overdue.max_by_key(|(_, bursts)| **bursts)?;
        let (_, state) = observed.present().find(|(present, _)| *present == name)?;
        Some(if !state.is_deleting {
            Step::Attach(name.clone())
        } else if self.is_attaching(state, observed) {
            let (pod, _) = self.pods.iter().find(|(_, pod)| pod.needs(state))?;
            Step::DeletePod(pod.clone())
        } else {
            Step::Detach(name.clone())
        })
    }

    /// A step that is possible in the current state and that `may_follow` accepts.
    fn random_step(
        &mut self,
        observed: &Observed,
        may_follow: impl Fn(&Self, &Step) -> bool,
    ) -> Option<Step> {
        let mut steps = self.pod_steps(observed);
        steps.extend(self.kubelet_steps(observed));
        for (name, state) in observed.present() {
            let steps_of_attacher = attacher_steps(name, state, self.bursts).into_iter();
            let is_attaching = self.is_attaching(state, observed);
            steps.extend(
                steps_of_attacher.filter(|(_, step)| !(is_attaching && matches!(step, Step::Detach(_)))),
            );
            if state.is_attached && !state.is_deleting && self.nodes_of(&state.volume, observed).len() == 1 {
                steps.push((1, Step::LoseAttachment(name.clone())));
                steps.push((1, Step::DeleteAttachment(name.clone())));
            }
        }
        let node = self.random_node();
        let is_out = self.out_of_service.contains(&node);
        steps.push((1, Step::SetOutOfService(node, !is_out)));
        let node = self.random_node();
        let is_ready = !self.not_ready.contains(&node);
        steps.push((1, Step::SetReady(node, !is_ready)));
        if !self.is_late_volume_created {
            steps.push((2, Step::CreateVolume(self.schedule.late_volume())));
        }
        steps.retain(|(_, step)| may_follow(self, step));
        let total: u32 = steps.iter().map(|(weight, _)| weight).sum();
        if total == 0 {
            return None;
        }
        let mut chosen = self.random.u32(..total);
        let found = steps.into_iter().find(|(weight, _)| {
            let found = chosen < *weight;
            chosen = chosen.saturating_sub(*weight);
            found
        });
        found.map(|(_, step)| step)
    }

    /// The nodes that report that they are not ready.
    pub(crate) fn not_ready(&self) -> &BTreeSet<String> {
        &self.not_ready
    }

    fn pod_steps(&mut self, observed: &Observed) -> Vec<(u32, Step)> {
        let mut steps = Vec::new();
        if self.pods.len() < PODS {
            let pod = format!("{}pod-{}", self.schedule.prefix, self.created);
            let all: Vec<_> = self.schedule.volumes().collect();
            let count = self.random.usize(1..=2);
            let volumes = self.random.choose_multiple(all, count);
            let node = self.random_node();
            if volumes.iter().all(|volume| self.may_use(volume, &node, observed)) {
                steps.push((6, Step::CreatePod { pod, node, volumes }));
            }
        }
        for (name, pod) in &self.pods {
            steps.push((1, Step::DeletePod(name.clone())));
            if !pod.is_finished {
                steps.push((1, Step::FinishPod(name.clone())));
            }
        }
        steps
    }

    /// Whether a pod on `node` would neither make a second node wait for the volume nor race with another attach.
    fn may_use(&self, volume: &str, node: &str, observed: &Observed) -> bool {
        let mut nodes = self.nodes_of(volume, observed);
        nodes.insert(node.to_owned());
        if nodes.len() == 1 || !is_of_single_node(volume) {
            return true;
        }
        let is_settled = |(_, state): (_, &Attachment)| {
            state.volume != volume || (state.is_attached && !state.is_deleting)
        };
        nodes.len() == 2 && observed.present().all(is_settled) && !self.lost.contains(volume)
    }

    /// Whether a pod waits for the attach: the controller keeps retrying while the VolumeAttachment is being deleted.
    fn is_attaching(&self, attachment: &Attachment, observed: &Observed) -> bool {
        let is_needed = self.pods.values().any(|pod| pod.needs(attachment));
        let reported = observed.volumes_attached.get(&attachment.node);
        let is_reported = reported
            .into_iter()
            .flatten()
            .any(|(name, _)| *name == unique_name(&attachment.volume));
        is_needed && !is_reported
    }

    /// The nodes with a pod that needs the volume, and those with its VolumeAttachment.
    fn nodes_of(&self, volume: &str, observed: &Observed) -> BTreeSet<String> {
        let needing = self.pods.values().filter(|pod| !pod.is_finished);
        let needing = needing.filter(|pod| pod.volumes.iter().any(|name| name == volume));
        let attachments = observed.present().filter(|(_, state)| state.volume == volume);
        let attached = attachments.map(|(_, state)| state.node.clone());
        needing.map(|pod| pod.node.clone()).chain(attached).collect()
    }

    /// A mount of an attached volume that a pod needs, or the unmount of one that no pod needs.
    fn kubelet_steps(&self, observed: &Observed) -> Vec<(u32, Step)> {
        let mut steps = Vec::new();
        for node in self.schedule.nodes() {
            let in_use = self.in_use.get(&node).cloned().unwrap_or_default();
            let pods = self
                .pods
                .values()
                .filter(|pod| pod.node == node && !pod.is_finished);
            let needed: BTreeSet<_> = pods
                .flat_map(|pod| &pod.volumes)
                .map(|name| unique_name(name))
                .collect();
            let attached = observed.volumes_attached.get(&node).into_iter().flatten();
            for (volume, _) in
                attached.filter(|(volume, _)| needed.contains(volume) && !in_use.contains(volume))
            {
                let mut in_use = in_use.clone();
                in_use.insert(volume.clone());
                steps.push((3, Step::SetInUse(node.clone(), in_use)));
            }
            for volume in in_use.iter().filter(|volume| !needed.contains(*volume)) {
                let mut in_use = in_use.clone();
                in_use.remove(volume);
                steps.push((3, Step::SetInUse(node.clone(), in_use)));
            }
        }
        steps
    }

    fn apply(&mut self, step: &Step, observed: &Observed) {
        match step {
            Step::CreatePod { pod, node, volumes } => {
                self.created += 1;
                let created = Pod {
                    node: node.clone(),
                    volumes: volumes.clone(),
                    is_finished: false,
                };
                self.pods.insert(pod.clone(), created);
            }
            Step::DeletePod(pod) => drop(self.pods.remove(pod)),
            Step::FinishPod(pod) => {
                if let Some(pod) = self.pods.get_mut(pod) {
                    pod.is_finished = true;
                }
            }
            Step::SetInUse(node, volumes) => {
                self.in_use.insert(node.clone(), volumes.clone());
            }
            Step::SetOutOfService(node, true) => {
                self.out_of_service.insert(node.clone());
            }
            Step::SetOutOfService(node, false) => {
                self.out_of_service.remove(node);
            }
            Step::SetReady(node, false) => {
                self.not_ready.insert(node.clone());
            }
            Step::SetReady(node, true) => {
                self.not_ready.remove(node);
            }
            Step::CreateVolume(_) => self.is_late_volume_created = true,
            Step::LoseAttachment(name) | Step::DeleteAttachment(name) => {
                let lost = observed.present().find(|(present, _)| *present == name);
                self.lost.extend(lost.map(|(_, state)| state.volume.clone()));
            }
            Step::Attach(_) | Step::FailAttach(..) | Step::Detach(_) | Step::FailDetach(_) => {}
        }
    }

    fn random_node(&mut self) -> String {
        let number = self.random.usize(..NODES);
        self.schedule.nodes().nth(number).unwrap_or_default()
    }
}

// === functions ===

/// The name of a volume in a node's status.
pub(crate) fn unique_name(volume: &str) -> String {
    format!("kubernetes.io/csi/{}^{volume}", crate::actor::DRIVER)
}

/// Whether the volume may be attached to one node only.
pub(crate) fn is_of_single_node(volume: &str) -> bool {
    let number = volume
        .rsplit('-')
        .next()
        .and_then(|number| number.parse::<usize>().ok());
    number.and_then(|number| VOLUMES.get(number)) == Some(&"ReadWriteOnce")
}

fn attacher_steps(name: &str, state: &Attachment, number: u32) -> Vec<(u32, Step)> {
    let name = || name.to_owned();
    let mut steps = Vec::new();
    if state.is_deleting {
        steps.push((5, Step::Detach(name())));
        if state.detach_error.is_none() {
            steps.push((2, Step::FailDetach(name())));
        }
        return steps;
    }
    if !state.is_attached {
        steps.push((5, Step::Attach(name())));
        if state.attach_error.is_none() {
            steps.push((2, Step::FailAttach(name(), number)));
        }
    }
    steps
}
