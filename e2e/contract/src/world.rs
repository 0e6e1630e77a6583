//! The state that follows from the observations so far.

mod release;
mod target;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use target::{Proof, Refusals, TargetState};

use crate::observation::{
    Answer, Attachment, Call, Method, Name, Observation, Pod, Registration, Target, Volume,
};

/// The state before an observation. Numbers (`usize`) are numbers of observations.
#[derive(Debug)]
pub struct World {
    /// The VolumeAttachments by name.
    pub attachments: BTreeMap<Name, AttachmentState>,
    /// The PersistentVolumes by name, deleted ones too.
    pub volumes: BTreeMap<Name, Arc<Volume>>,
    /// The pods by name.
    pub pods: BTreeMap<Name, Arc<Pod>>,
    /// The PersistentVolumes that a pod used.
    pub used: BTreeSet<Name>,
    /// The nodes by name, deleted ones too.
    pub nodes: BTreeMap<Name, NodeState>,
    /// What is known about each target that a call or the array named.
    pub targets: BTreeMap<Target, TargetState>,
    /// The calls without an answer.
    pub running: BTreeMap<u64, (usize, Arc<Call>)>,
    /// What the array has published, and since when.
    pub published: BTreeMap<Target, usize>,
    /// What is mounted, and since when.
    pub mounted: BTreeMap<Target, usize>,
    /// Volumes (the driver's ID) and nodes (name) that the controller force-detached, and since when.
    pub forced: BTreeMap<(Name, Name), usize>,
    /// Whether the driver has PUBLISH_UNPUBLISH_VOLUME.
    pub publishes: bool,
    /// The holder of the lease, and since when; `None`: unknown.
    pub leader: Option<(usize, Option<Name>)>,
    /// Gaps in the record that have not ended.
    pub gaps: BTreeMap<String, usize>,
    /// When the latest gap began.
    pub last_gap: Option<usize>,
    /// UIDs whose finalizer another client removed, until they have it again.
    pub taken: BTreeSet<Name>,
    /// The recorded targets of these, until a publish with the finalizer begins.
    pub taken_targets: BTreeSet<Target>,
    /// The latest fault.
    pub last_fault: Option<usize>,
    /// When all faults ended.
    pub healed: Option<usize>,
    /// The first fault after that.
    pub relapsed: Option<usize>,
    lists: BTreeMap<u64, usize>,
    operator: Option<Duration>,
}

/// A VolumeAttachment.
#[derive(Debug)]
pub struct AttachmentState {
    /// The latest version.
    pub version: Arc<Attachment>,
    /// Its first and its latest version.
    pub seen: (usize, usize),
    /// When it was first deleting.
    pub deleting: Option<usize>,
    /// Changes so far that are not a request for its deletion.
    pub writes: usize,
    /// Those before its deletion was requested.
    pub attach_writes: usize,
}

/// A node.
#[derive(Debug, Default)]
pub struct NodeState {
    /// Whether it is ready and in service; `None`: unknown.
    pub healthy: Option<bool>,
    /// The driver's present registration, and since when.
    pub registration: Option<(Registration, usize)>,
    /// All node IDs that the driver ever registered for it.
    pub ids: BTreeSet<Name>,
    /// The volumes that its status lists as attached.
    pub listed: BTreeSet<Name>,
}

// === impl World ===

impl World {
    /// Nothing exists yet. `operator`: the attacher's flag `--assume-unpublished-after`.
    pub(crate) fn new(operator: Option<Duration>) -> Self {
        Self {
            attachments: BTreeMap::new(),
            volumes: BTreeMap::new(),
            pods: BTreeMap::new(),
            used: BTreeSet::new(),
            nodes: BTreeMap::new(),
            targets: BTreeMap::new(),
            running: BTreeMap::new(),
            published: BTreeMap::new(),
            mounted: BTreeMap::new(),
            forced: BTreeMap::new(),
            publishes: true,
            leader: None,
            gaps: BTreeMap::new(),
            last_gap: None,
            taken: BTreeSet::new(),
            taken_targets: BTreeSet::new(),
            last_fault: None,
            healed: None,
            relapsed: None,
            lists: BTreeMap::new(),
            operator,
        }
    }

    /// The driver's ID of an attachment's volume.
    pub fn handle(&self, attachment: &Attachment) -> Option<Name> {
        let volume = self.volumes.get(&attachment.volume);
        // A PersistentVolume of the same name may have another one now.
        let recorded = attachment.handle.clone();
        recorded.or_else(|| volume.map(|volume| volume.handle.clone()))
    }

    /// The PersistentVolume of a handle.
    pub fn volume_of(&self, handle: &str) -> Option<&Arc<Volume>> {
        self.volumes.values().find(|volume| &*volume.handle == handle)
    }

    /// Whether the target is the attachment's: its recorded node ID, or, without one, any ID of its node.
    pub fn is_target_of(&self, attachment: &Attachment, target: &Target) -> bool {
        self.handle(attachment)
            .is_some_and(|handle| handle == target.volume)
            && match &attachment.node_id {
                Some(id) => *id == target.node,
                None => self.is_id_of(&attachment.node, &target.node),
            }
    }

    /// Whether the driver ever registered this node ID for the node.
    pub fn is_id_of(&self, node: &str, id: &str) -> bool {
        self.nodes.get(node).is_some_and(|node| node.ids.contains(id))
    }

    /// The attachments of the target's volume to its node, under any ID of the node.
    pub fn attachments_of<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a AttachmentState> {
        self.attachments.values().filter(|state| {
            let attachment = &state.version;
            self.handle(attachment)
                .is_some_and(|handle| handle == target.volume)
                && (attachment.node_id.as_ref() == Some(&target.node)
                    || self.is_id_of(&attachment.node, &target.node))
        })
    }

    /// The targets on which the attachment's volume may be: those of publishes for it, the recorded one, and those under any ID
    /// of its node that the array has published.
    pub fn targets_of(&self, attachment: &Attachment) -> BTreeSet<Target> {
        let Some(handle) = self.handle(attachment) else {
            return BTreeSet::new();
        };
        let of_volume = self.targets.iter().filter(|(target, _)| target.volume == handle);
        of_volume
            .filter(|(target, state)| {
                state.published_for.as_ref() == Some(&attachment.uid)
                    || attachment.node_id.as_ref() == Some(&target.node)
                    || (state.published_for.is_none() && self.is_id_of(&attachment.node, &target.node))
            })
            .map(|(target, _)| target.clone())
            .collect()
    }

    /// Whether an attacher process that is known to run without the lease sent this.
    pub(crate) fn lacks_lease(&self, by: Option<&Name>) -> Option<usize> {
        let (since, holder) = self.leader.as_ref()?;
        (by.is_some() && holder.as_ref() != by).then_some(*since)
    }

    pub(crate) fn apply(&mut self, number: usize, at: Duration, seen: &Observation) {
        match seen {
            Observation::Attachment(attachment) => self.attachment(number, attachment),
            Observation::AttachmentGone(name) => {
                self.attachments.remove(name);
            }
            Observation::FinalizerTaken(uid) => self.finalizer_taken(uid),
            Observation::Volume(volume) => {
                self.volumes.insert(volume.name.clone(), volume.clone());
            }
            Observation::Node { node, healthy } => {
                self.nodes.entry(node.clone()).or_default().healthy = Some(*healthy);
            }
            Observation::VolumesAttached(node, volumes) => {
                self.nodes.entry(node.clone()).or_default().listed = volumes.clone();
            }
            Observation::CsiNode(node, registration) => self.register(number, node, registration),
            Observation::Forced(volume, node) => {
                let force = (volume.clone(), node.clone());
                self.forced.entry(force).or_insert(number);
            }
            Observation::PublishCapability(has) => self.publishes = *has,
            Observation::CallBegan(call) => self.call(number, call),
            Observation::CallEnded(call, answer) => self.answer(number, at, *call, answer),
            Observation::ListBegan(round) => {
                self.lists.insert(*round, number);
            }
            Observation::ListEnded(round, list) => {
                let Some(began) = self.lists.remove(round) else {
                    return;
                };
                for (target, state) in &mut self.targets {
                    state.listed(began, list, target);
                }
            }
            Observation::Array(target, published) => {
                self.targets.entry(target.clone()).or_default();
                set(&mut self.published, target, *published, number);
            }
            Observation::Mounted(target, mounted) => set(&mut self.mounted, target, *mounted, number),
            Observation::Lease(holder) => self.leader = Some((number, holder.clone())),
            Observation::ProcessEnded(process) => self.end_process(number, process),
            Observation::Fault(_) => {
                self.last_fault = Some(number);
                self.relapsed = self.relapsed.or(self.healed.take().and(Some(number)));
            }
            Observation::Healed => (self.healed, self.relapsed) = (Some(number), None),
            Observation::GapBegan(what) => {
                (self.last_fault, self.last_gap) = (Some(number), Some(number));
                self.gaps.insert(what.clone(), number);
            }
            Observation::GapEnded(what) => {
                self.gaps.remove(what);
            }
            Observation::VolumeGone(name) => {
                // The handle is still needed.
                if let Some(volume) = self.volumes.get_mut(name) {
                    let volume = Arc::make_mut(volume);
                    (volume.finalizers, volume.deleting) = (0, true);
                }
            }
            Observation::Pod(pod) => {
                self.used.extend(pod.volume.clone());
                self.pods.insert(pod.name.clone(), pod.clone());
            }
            Observation::PodGone(name) => drop(self.pods.remove(name)),
            Observation::VolumeDeleted(_)
            | Observation::Write(_)
            | Observation::Panicked(_)
            | Observation::Text(..)
            | Observation::Settled
            | Observation::CleanedUp => {}
        }
    }

    fn finalizer_taken(&mut self, uid: &Name) {
        self.taken.insert(uid.clone());
        let known = self.attachments.values().find(|state| state.version.uid == *uid);
        let target = known.and_then(|state| {
            let (volume, node) = (self.handle(&state.version)?, state.version.node_id.clone()?);
            Some(Target { volume, node })
        });
        self.taken_targets.extend(target);
        for state in self.targets.values_mut() {
            state.taken |= state.published_for.as_ref() == Some(uid);
        }
    }

    fn answer(&mut self, number: usize, at: Duration, call: u64, answer: &Answer) {
        let Some((began, call)) = self.running.remove(&call) else {
            return;
        };
        if &*answer.code != "OK" {
            self.last_fault = Some(number);
        }
        for state in self.concerned(&call.target) {
            state.answered(number, at, (began, &call), answer);
        }
    }

    fn end_process(&mut self, number: usize, process: &Name) {
        self.last_fault = Some(number);
        // Orphans are in the memory of the process only.
        for state in self.targets.values_mut() {
            state.taken |= state.orphaned;
        }
        let is_its = |call: &Call| call.by.as_ref().is_none_or(|by| by == process);
        let ended = self.running.extract_if(.., |_, (_, call)| is_its(call));
        for (_, (_, call)) in ended.collect::<Vec<_>>() {
            let state = self.targets.get_mut(&call.target);
            if let Some(state) = state.filter(|_| call.method == Method::Publish) {
                state.publish_cut_off(number);
            }
        }
    }

    fn attachment(&mut self, number: usize, version: &Arc<Attachment>) {
        let known = self
            .attachments
            .get(&version.name)
            .map(|state| state.version.clone());
        let moved = known.filter(|known| known.uid == version.uid && known.node_id != version.node_id);
        let left = moved.and_then(|known| {
            let (volume, node) = (self.handle(&known)?, known.node_id.clone()?);
            self.targets.get_mut(&Target { volume, node })
        });
        if let Some(state) = left {
            state.orphaned = state.is_unknown();
        }
        let is_deleting = version.deleting.is_some();
        let known = self.attachments.get_mut(&version.name);
        if let Some(state) = known.filter(|state| state.version.uid == version.uid) {
            let is_write = state.version.deleting.is_some() == is_deleting && state.version != *version;
            if version.finalizer && !state.version.finalizer {
                self.taken.remove(&version.uid);
            }
            state.writes += usize::from(is_write);
            state.attach_writes += usize::from(is_write && !is_deleting);
            state.deleting = state.deleting.or(is_deleting.then_some(number));
            state.version = version.clone();
            state.seen.1 = number;
            return;
        }
        // A new attachment ends the force of the former one.
        if let Some(handle) = self.handle(version).filter(|_| !is_deleting) {
            self.forced.remove(&(handle, version.node.clone()));
        }
        let state = AttachmentState {
            version: version.clone(),
            seen: (number, number),
            deleting: is_deleting.then_some(number),
            writes: 0,
            attach_writes: 0,
        };
        self.attachments.insert(version.name.clone(), state);
    }

    fn register(&mut self, number: usize, node: &Name, registration: &Registration) {
        let node = self.nodes.entry(node.clone()).or_default();
        if let Registration::Id(id) = registration {
            node.ids.insert(id.clone());
        }
        node.registration = Some((registration.clone(), number));
        for (target, state) in &mut self.targets {
            if node.ids.contains(&target.node) {
                state.refusals = Refusals::default();
            }
        }
    }

    fn call(&mut self, number: usize, call: &Arc<Call>) {
        self.running.insert(call.number, (number, call.clone()));
        if call.method == Method::Publish {
            // Several attachments of one volume and node: the one with the finalizer.
            let owner = self.attachments_of(&call.target).max_by_key(|state| {
                let attachment = &state.version;
                (attachment.finalizer, attachment.deleting.is_none(), state.seen.0)
            });
            let is_shared = self.attachments_of(&call.target).nth(1).is_some();
            let is_guarded = owner.is_some_and(|state| state.version.finalizer);
            let owner = owner.map(|state| state.version.uid.clone());
            if is_guarded {
                self.taken_targets.remove(&call.target);
            }
            let state = self.targets.entry(call.target.clone()).or_default();
            state.publish_began(number, owner);
            state.shared = is_shared;
            // The attacher sent it before it could know that another client had taken the finalizer.
            state.taken = self.taken_targets.contains(&call.target);
        } else {
            self.targets.entry(call.target.clone()).or_default();
            for state in self.concerned(&call.target) {
                state.unpublish_began();
            }
        }
    }

    fn concerned(&mut self, target: &Target) -> impl Iterator<Item = &mut TargetState> {
        self.targets
            .iter_mut()
            .filter(move |(known, _)| target.includes(known))
            .map(|(_, state)| state)
    }
}

fn set(of: &mut BTreeMap<Target, usize>, target: &Target, is_in: bool, number: usize) {
    if is_in {
        of.entry(target.clone()).or_insert(number);
    } else {
        of.remove(target);
    }
}
