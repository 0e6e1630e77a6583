//! The core of the attacher: events in, jobs out, reports back in.
//!
//! It joins [`Informer`], [`Queue`] and [`plan`] and is as pure as they are: no await,
//! no client, no clock, and its randomness comes from a seed. Whoever drives it carries out the
//! [`Job`]s, one after the other or thousands at once, and hands back a [`Report`] for each.
//!
//! Invariants: one job a key at a time; a job gets the newest state there is when it starts; the
//! echo of our own write starts nothing; a failure is waited out unless something changed that the
//! work depends on.

mod abandoned_targets;
mod deleted_volumes;
mod events;
mod job;
mod reconcile;
mod repair;
mod stats;
mod target_usage;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

pub use stats::{LastFailure, LatencyMetrics, Listed, Pending, QueueStats, Stats};

use crate::informer::{Change, Indexer, Informer};
use crate::model::{Attachment, Capabilities, Node, PublishTarget, Uid, Volume};
use crate::plan::reconcile::ListVolumesResult;
use crate::plan::{self, Operation, release};
use crate::workqueue::{Backoff, Class, Failed, Finished, Key, Lane, Limits, Queue};
pub use job::{AbandonedTarget, Job, Outcome, PendingStatusWrite, Report, Subject};
pub use reconcile::{Fault, Finding, LastRound, ReconcileMetrics, Round};
use repair::{Repairs, lane};
pub use target_usage::{TargetUsage, UsedBy};

/// See the module.
#[derive(Debug)]
pub struct ControllerState {
    index: Informer,
    /// By name, those that are gone while their attachments do not tell what they were.
    gone_volumes: HashMap<Arc<str>, Arc<Volume>>,
    queue: Queue,
    /// Targets to unpublish although their attachments are gone.
    abandoned: BTreeMap<PublishTarget, Arc<AbandonedTarget>>,
    /// What the driver answered where it could not be written down yet. The write is then tried
    /// again by itself, without another driver call.
    answers: HashMap<Uid, PendingStatusWrite>,
    /// Attachments whose job began before the driver was last back: what it is told by may be the one before.
    started_before_reconnect: HashSet<Uid>,
    /// Attachments whose record is being changed to another target: the one that is known is none to rely on.
    node_id_update_pending: HashSet<Uid>,
    /// Attachments whose last failure was for want of room on their node, and some whose was not.
    resource_exhausted_by_node: Indexer,
    listed: Listed,
    reached: LatencyMetrics,
    random: fastrand::Rng,
    /// What the driver can do, since it was first there.
    capabilities: Option<Capabilities>,
    repairs: Repairs,
    /// Whether work has begun: before all lists are complete, a node that is not listed yet looks like
    /// one that does not exist.
    started: bool,
}

/// Something that happened outside.
#[derive(Clone, Debug)]
pub enum Event {
    /// To VolumeAttachments of our driver.
    Attachments(Change<Attachment>),
    /// To PersistentVolumes that concern us.
    Volumes(Change<Volume>),
    /// To CSINodes.
    Nodes(Change<Node>),
    /// The driver can be called, for the first time or again, and this is what it can do now.
    DriverBack(Capabilities),
    /// A survey that [`ControllerState::begin_reconcile`] began is complete.
    VolumesListed(ListVolumesResult, Round),
    /// It came to nothing, for this reason.
    ListVolumesFailed(Round, Arc<str>),
    /// Time to look at everything again (`--resync`).
    Resync,
}

// === impl Event ===

impl Event {
    /// What is to be handled before the watch that said this goes on, ahead of all that still waits to be:
    /// it is about to ask for a list.
    pub fn announcement(&self) -> Option<Self> {
        match self {
            Self::Attachments(Change::ReplaceStarted) => Some(Self::Attachments(Change::RelistStarting)),
            Self::Volumes(Change::ReplaceStarted) => Some(Self::Volumes(Change::RelistStarting)),
            Self::Nodes(Change::ReplaceStarted) => Some(Self::Nodes(Change::RelistStarting)),
            Self::Attachments(_)
            | Self::Volumes(_)
            | Self::Nodes(_)
            | Self::DriverBack(_)
            | Self::VolumesListed(..)
            | Self::ListVolumesFailed(..)
            | Self::Resync => None,
        }
    }
}

// === impl ControllerState ===

impl ControllerState {
    /// An state that knows nothing yet.
    pub fn new(limits: Limits, backoff: Backoff, seed: u64) -> Self {
        Self {
            index: Informer::default(),
            gone_volumes: HashMap::new(),
            queue: Queue::new(limits, backoff),
            abandoned: BTreeMap::new(),
            answers: HashMap::new(),
            started_before_reconnect: HashSet::new(),
            node_id_update_pending: HashSet::new(),
            resource_exhausted_by_node: Indexer::default(),
            listed: Listed::default(),
            reached: LatencyMetrics::default(),
            random: fastrand::Rng::with_seed(seed),
            capabilities: None,
            repairs: Repairs::default(),
            started: false,
        }
    }

    /// Takes in what happened outside.
    pub fn handle(&mut self, event: Event) {
        self.listed.note(&event);
        match event {
            Event::Attachments(change) => self.attachments_changed(change),
            Event::Volumes(change) => self.volumes_changed(change),
            Event::Nodes(change) => self.nodes_changed(change),
            Event::DriverBack(capabilities) => self.driver_back(capabilities),
            Event::VolumesListed(survey, round) => self.surveyed(survey, round),
            Event::ListVolumesFailed(round, why) => self.survey_failed(round, why),
            Event::Resync => self.consider_all(),
        }
    }

    /// The next job, if any is due and its lane has a free place.
    pub fn start(&mut self, now: Instant) -> Option<Job> {
        self.started = true;
        self.queue.advance(now);
        while let Some((key, lane)) = self.queue.start() {
            let job = match &key {
                Key::Attachment(name) => self.attachment_job(name, lane),
                Key::Volume(name) => self.volume_job(name),
                Key::Target(target) => self.abandoned.get(target).cloned().map(Job::Unpublish),
            };
            if job.is_some() {
                return job;
            }
            // What the key waited for is no longer wanted; what is, follows from the newest state.
            let Finished { .. } = self.queue.finish(&key);
            self.consider(&key);
        }
        None
    }

    /// When [`ControllerState::start`] is next worth calling if nothing happens before.
    pub fn next_start(&self) -> Option<Instant> {
        self.queue.next_advance()
    }

    /// Takes in how a job ended.
    pub fn finish(&mut self, report: Report, now: Instant) {
        let Report { subject, outcome } = report;
        self.queue.tell(now);
        match subject {
            Subject::Attachment(wanted, attachment) => {
                self.attachment_finished(wanted, &attachment, outcome, now);
            }
            Subject::Target(abandoned) => self.target_finished(&abandoned, outcome, now),
            Subject::Volume(volume) => self.volume_finished(&volume, outcome, now),
        }
    }

    /// What the driver can do, as far as was told.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.capabilities
    }

    /// What is known now about this VolumeAttachment.
    pub fn attachment(&self, name: &str) -> Option<&Arc<Attachment>> {
        self.index.attachment(name)
    }

    /// What is known now about this PersistentVolume.
    pub fn volume(&self, name: &str) -> Option<&Arc<Volume>> {
        self.index.volume(name)
    }

    fn attachment_job(&mut self, name: &str, lane: Lane) -> Option<Job> {
        let attachment = self.index.attachment(name)?.clone();
        let wanted = self
            .operation(&attachment)
            .filter(|wanted| repair::lane(*wanted, &attachment) == lane)?;
        self.mark_dirty(&attachment.name);
        Some(Job::Attachment {
            wanted,
            facts: self.facts(&attachment)?,
            answer: self.answers.remove(&attachment.uid),
            repair: plan::operation(&attachment, self.publishes()).is_none(),
        })
    }

    fn volume_job(&self, name: &str) -> Option<Job> {
        if let Some(record_volume_id) = self.record_volume_id(name) {
            return Some(record_volume_id);
        }
        let volume = self.index.volume(name).filter(|_| self.is_releasable(name))?;
        Some(Job::Release {
            volume: volume.clone(),
        })
    }

    fn attachment_finished(
        &mut self,
        done: Operation,
        attachment: &Arc<Attachment>,
        outcome: Outcome,
        now: Instant,
    ) {
        let key = Key::Attachment(attachment.name.clone());
        let mut finished = self.queue.finish(&key);
        self.resource_exhausted_by_node
            .remove(&attachment.node, &attachment.name);
        self.mark_dirty(&attachment.name);
        if outcome == Outcome::Done {
            self.repair_finished(done, attachment);
            self.note_fresh(attachment);
            if done == Operation::Detach {
                self.enqueue_waiting_for(attachment);
            }
        }
        let started_before_reconnect = self.started_before_reconnect.remove(&attachment.uid);
        let newest = self.index.attachment(&attachment.name).cloned();
        let (
            Some(newest),
            Outcome::Failed {
                class,
                code,
                answer,
                message,
                retry_after,
            },
        ) = (&newest, &outcome)
        else {
            return self.reconsider(done, attachment, newest.as_ref(), finished, now);
        };
        // First, since the work that is left may follow from nothing else.
        if newest.uid == attachment.uid
            && let Some(answer) = answer
            && !(started_before_reconnect && answer.is_of_its_time())
        {
            self.answers.insert(newest.uid.clone(), answer.clone());
        }
        if newest.uid != attachment.uid || self.operation(newest) != Some(done) {
            self.answers.remove(&attachment.uid);
            return self.reconsider(done, attachment, Some(newest), finished, now);
        }
        // The driver came back while this run told of its absence: nothing else will wake it.
        finished.again |= started_before_reconnect && *class == Class::Disconnected;
        if *class == Class::Refused && self.park(done, newest, finished.again) {
            return;
        }
        if *code == Some(RESOURCE_EXHAUSTED) {
            self.resource_exhausted_by_node.insert(&newest.node, &newest.name);
        }
        let failed = Failed {
            uid: newest.uid.clone(),
            lane: lane(done, newest),
            class: *class,
            code: *code,
            message: message.clone(),
            retry_after: *retry_after,
        };
        self.queue.fail(&key, finished, failed, now, self.random.f64());
    }

    /// What follows when a job left nothing to repeat.
    fn reconsider(
        &mut self,
        done: Operation,
        attachment: &Attachment,
        newest: Option<&Arc<Attachment>>,
        finished: Finished,
        now: Instant,
    ) {
        let Some((newest, next)) = newest.and_then(|newest| Some((newest, self.operation(newest)?))) else {
            return;
        };
        let key = Key::Attachment(newest.name.clone());
        if next == done && newest.uid == attachment.uid {
            // The object that we knew is no more, and the watch has not told yet what took its
            // place. It will; until then there is nothing to do but not to spin.
            let failed = Failed {
                uid: newest.uid.clone(),
                lane: lane(next, newest),
                class: Class::Final,
                code: None,
                message: LATE.into(),
                retry_after: None,
            };
            self.queue.fail(&key, finished, failed, now, self.random.f64());
        } else {
            self.queue.enqueue(&key, lane(next, newest));
        }
    }

    /// A detach frees the volume for another node, and a place on its node for another volume.
    /// Attaches that failed for want of either need not wait out their backoff.
    fn enqueue_waiting_for(&mut self, detached: &Attachment) {
        if let Some(volume) = detached.volume_name() {
            for name in self.index.attachments_of_volume(volume) {
                let key = Key::Attachment(name.clone());
                self.queue.enqueue_if_pending_in(&key, &ATTACHES);
            }
        }
        for name in self.resource_exhausted_by_node.get(&detached.node) {
            let key = Key::Attachment(name.clone());
            let newest = self.index.attachment(name);
            // Not what the status says: API servers may keep no code there.
            if newest.and_then(|newest| self.queue.failed_with(&key, &newest.uid)) == Some(RESOURCE_EXHAUSTED)
            {
                self.queue.enqueue_if_pending_in(&key, &ATTACHES);
            }
        }
    }

    /// Queues what the newest state of `key` asks for.
    fn consider(&mut self, key: &Key) {
        let lane = match key {
            Key::Attachment(name) => self
                .index
                .attachment(name)
                .and_then(|attachment| self.lane(attachment)),
            Key::Volume(name) => self.wants_work_on(name).then_some(Lane::Volume),
            Key::Target(target) => self.abandoned.contains_key(target).then_some(Lane::Detach),
        };
        match lane {
            Some(lane) => self.queue.enqueue(key, lane),
            None => self.queue.forget(key),
        }
    }

    /// Queues whatever any object's newest state asks for, also what waits out a backoff.
    fn consider_all(&mut self) {
        let attachments = self.index.attachments().map(|a| Key::Attachment(a.name.clone()));
        let volumes = self.index.volumes().map(|v| Key::Volume(v.name.clone()));
        let targets = self.abandoned.keys().cloned().map(Key::Target);
        let mut keys: Vec<Key> = attachments.chain(volumes).chain(targets).collect();
        // The index has no order, and the same calls are to give the same one.
        keys.sort_unstable();
        for key in keys {
            self.consider(&key);
        }
    }

    /// Whether our finalizer is to come off this PersistentVolume.
    pub fn is_releasable(&self, volume: &str) -> bool {
        self.index.volume(volume).is_some_and(|v| {
            release(
                v,
                self.index.attachments_of_volume(volume).len(),
                self.publishes(),
            )
        })
    }
}

/// Why a job that left nothing to repeat is looked at again all the same.
const LATE: &str = "the watch has not told yet what became of the object";

/// The lanes of those who wait for room or for a volume.
const ATTACHES: [Lane; 2] = [Lane::Attach, Lane::Repair];

/// gRPC's RESOURCE_EXHAUSTED: for ControllerPublishVolume, the node has no room for another volume.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Locks the one state that dispatcher, worker and reconciler share. Jobs lock it themselves, so it must not be
/// held while they are polled.
pub fn lock(state: &Mutex<ControllerState>) -> MutexGuard<'_, ControllerState> {
    state
        .lock()
        .expect("nothing must panic while the state is locked")
}

#[cfg(test)]
pub(crate) mod tests;
