//! The controller's state between syncs: it handles events, returns work items, and handles their results.
//!
//! It joins `Informer`, `Queue` and `plan` and is as pure as they are: no await, no client, no clock, and its
//! randomness comes from a seed. `Controller::run` syncs its `Item`s, thousands at once if the
//! lanes allow it, and returns the result of each.
//!
//! Invariants: one sync per key at a time; a sync starts from the newest state; the echo of our own write enqueues nothing;
//! backoff ends early only if something changed that the work depends on.

mod capacity;
mod events;
mod evidence;
mod findings;
mod orphans;
mod progress;
mod reconcile;
mod repair;
mod stats;
mod volumes;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use capacity::RESOURCE_EXHAUSTED;
pub(crate) use stats::QueueStats;
use stats::{CachesSynced, LatencyMetrics};

use super::SyncError;
use crate::informer::{Change, Informer};
use crate::model::{Attachment, Capabilities, Node, PublishTarget, Uid, Volume};
use crate::plan::reconcile::ListVolumesResult;
use crate::plan::{self, DetachEvidence, Operation, Orphan, Progress, PublishEnd, Subject};
use crate::workqueue::{Backoff, Class, Finished, Key, Lane, Limits, Queue};
pub(crate) use findings::Finding;
pub use reconcile::Round;
pub(crate) use reconcile::{LastRound, ReconcileMetrics, Rounds};
use repair::SuspectState;

/// See the module.
#[derive(Debug)]
pub struct ControllerState {
    pub(crate) index: Informer,
    to_backfill: BTreeSet<Arc<str>>,
    pub(crate) queue: Queue,
    pub(crate) orphans: BTreeMap<PublishTarget, Arc<Orphan>>,
    /// Those that wait until another VolumeAttachment changes, which may use the volume on the same machine.
    waiting_orphans: BTreeSet<PublishTarget>,
    /// Of the orphans that are being synced.
    orphan_progress: HashMap<PublishTarget, Progress>,
    attachment_states: HashMap<Uid, AttachmentState>,
    evidence: DetachEvidence,
    pub(crate) caches_synced: CachesSynced,
    pub(crate) latency: LatencyMetrics,
    random: fastrand::Rng,
    /// The driver's, since its first connection.
    pub(super) capabilities: Option<Capabilities>,
    connection: u64,
    pub(crate) rounds: Rounds,
    /// Since the last [`ControllerState::take_findings`].
    findings: Vec<Finding>,
    /// Whether syncs have started: until the caches are synced, a node that is not listed yet looks deleted.
    started: bool,
}

/// State of a VolumeAttachment in addition to the stored object.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttachmentState {
    pub(super) progress: Progress,
    /// Whether the driver reconnected while it was being synced.
    is_overtaken: bool,
    /// The repair that it needs, until that succeeds.
    repair: Option<Operation>,
    /// A refused repair, until something changes.
    suspended: Option<Operation>,
    /// Whether it was attached, or attached elsewhere, since the last reconcile round began.
    attached_since_round: bool,
    /// Whether it was so before that. The driver's list may be older.
    newly_attached: bool,
    suspect: Option<SuspectState>,
}

/// One key of the queue, with the newest objects of its name. The caller returns it with the result of its sync to
/// [`ControllerState::finish`].
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Subject(Subject),
    /// Remove our finalizer from a PersistentVolume.
    Volume(Arc<Volume>),
    /// Record the handle of a PersistentVolume on VolumeAttachments that lack it.
    Backfill {
        volume: Arc<Volume>,
        attachments: Vec<Arc<Attachment>>,
    },
}

/// The key whose sync sends the calls.
pub(super) fn key(subject: &Subject) -> Key {
    match subject {
        Subject::Attachment(_, attachment) => Key::Attachment(attachment.name.clone()),
        Subject::Orphan(orphan) => Key::Target(orphan.target.clone()),
    }
}

/// A change outside of the state.
#[derive(Clone, Debug)]
pub enum Event {
    /// VolumeAttachments of our driver.
    Attachments(Change<Attachment>),
    /// PersistentVolumes of our driver, or with our finalizer.
    Volumes(Change<Volume>),
    /// CSINodes.
    Nodes(Change<Node>),
    /// The driver is connected, for the first time or again, with these capabilities.
    DriverConnected(Capabilities),
    /// A round that `ControllerState::begin_reconcile` began is complete.
    VolumesListed(ListVolumesResult, Round),
    /// It failed, for this reason.
    ListVolumesFailed(Round, Arc<str>),
    /// The resync period (`--resync`) is over.
    Resync,
}

// === impl ControllerState ===

impl ControllerState {
    /// A state without objects.
    pub fn new(limits: Limits, backoff: Backoff, seed: u64, now: Instant) -> Self {
        Self {
            index: Informer::default(),
            to_backfill: BTreeSet::new(),
            queue: Queue::new(limits, backoff, now),
            orphans: BTreeMap::new(),
            waiting_orphans: BTreeSet::new(),
            orphan_progress: HashMap::new(),
            attachment_states: HashMap::new(),
            evidence: DetachEvidence::default(),
            caches_synced: CachesSynced::default(),
            latency: LatencyMetrics::default(),
            random: fastrand::Rng::with_seed(seed),
            capabilities: None,
            connection: 0,
            rounds: Rounds::default(),
            findings: Vec::new(),
            started: false,
        }
    }

    /// Stores the change, and enqueues the affected keys.
    pub fn handle(&mut self, event: Event) {
        match event {
            Event::Attachments(change) => {
                self.caches_synced.attachments |= change == Change::Replaced;
                self.attachments_changed(change);
            }
            Event::Volumes(change) => {
                self.caches_synced.volumes |= change == Change::Replaced;
                self.volumes_changed(change);
            }
            Event::Nodes(change) => {
                self.caches_synced.nodes |= change == Change::Replaced;
                self.nodes_changed(change);
            }
            Event::DriverConnected(capabilities) => self.driver_connected(capabilities),
            Event::VolumesListed(volumes, round) => self.volumes_listed(volumes, round),
            Event::ListVolumesFailed(round, why) => self.list_volumes_failed(round, why),
            Event::Resync => self.reevaluate_all(),
        }
    }

    /// Returns the next item that is due and whose lane has a free slot.
    pub(crate) fn start(&mut self, now: Instant) -> Option<Item> {
        self.started = true;
        self.queue.advance(now);
        while let Some((key, lane)) = self.queue.start() {
            let item = match &key {
                Key::Attachment(name) => self.attachment_item(name, lane),
                Key::Volume(name) => self.volume_item(name),
                Key::Target(target) => {
                    let orphan = self.orphans.get(target).cloned();
                    orphan.map(|orphan| Item::Subject(Subject::Orphan(orphan)))
                }
            };
            if item.is_some() {
                return item;
            }
            // The work is no longer wanted, or belongs in another lane.
            let Finished { .. } = self.queue.finish(&key);
            self.reevaluate(&key);
        }
        None
    }

    /// Handles the result of an item's sync, and enqueues the follow-up work.
    pub(crate) fn finish(&mut self, item: &Item, result: Result<(), SyncError>, now: Instant) {
        self.queue.now = now;
        match item {
            Item::Subject(Subject::Attachment(operation, attachment)) => {
                self.evidence
                    .publish_ended(&attachment.uid, PublishEnd::Unknown, now);
                self.attachment_finished(*operation, attachment, result);
                // Most VolumeAttachments are idle, and their entry is removed to save memory.
                if self.attachment_states.get(&attachment.uid) == Some(&AttachmentState::default()) {
                    self.attachment_states.remove(&attachment.uid);
                }
            }
            Item::Subject(Subject::Orphan(orphan)) => self.orphan_finished(orphan, result),
            Item::Volume(volume) | Item::Backfill { volume, .. } => self.volume_finished(volume, result),
        }
    }

    /// Whether no sync is running.
    pub fn is_drained(&self) -> bool {
        self.queue.running() == 0
    }

    fn attachment_item(&mut self, name: &Arc<str>, lane: Lane) -> Option<Item> {
        let attachment = self.index.attachments.get(name)?.clone();
        let (operation, newest_lane) = self.operation(&attachment)?;
        if newest_lane != lane {
            return None;
        }
        self.mark_changed(name);
        Some(Item::Subject(Subject::Attachment(operation, attachment)))
    }

    fn attachment_finished(
        &mut self,
        done: Operation,
        attachment: &Arc<Attachment>,
        result: Result<(), SyncError>,
    ) {
        let key = Key::Attachment(attachment.name.clone());
        let mut finished = self.queue.finish(&key);
        self.mark_changed(&attachment.name);
        if done == Operation::Detach && result.is_ok() {
            self.enqueue_waiting_for(attachment, None);
        }
        let Some(newest) = self.index.newest(attachment).cloned() else {
            self.attachment_states.remove(&attachment.uid);
            return self.reevaluate(&key);
        };
        if result.is_ok() {
            self.attachment_succeeded(done, attachment, &newest);
        }
        let known = self.state_of(&attachment.uid);
        known.progress.sync = Default::default();
        let is_overtaken = std::mem::take(&mut known.is_overtaken);
        let next = self
            .operation(&newest)
            .filter(|(operation, _)| *operation == done);
        let Some((_, lane)) = next else {
            let progress = &mut self.state_of(&attachment.uid).progress;
            (progress.published, progress.is_confirmed) = (None, false);
            return self.reevaluate(&key);
        };
        // After a success the watch will show the result; backoff keeps the sync from spinning until then.
        let mut error = result.err().unwrap_or_else(SyncError::watch_is_late);
        // The driver reconnected while this sync reported it as disconnected: no other event will end the wait.
        finished.dirty |= is_overtaken && error.class == Class::Disconnected;
        let edited = newest.recorded != attachment.recorded || newest.finalizer != attachment.finalizer;
        if error.class == Class::Refused && lane == Lane::Repair && !finished.dirty && !edited {
            self.rounds.metrics.refused += 1;
            self.state_of(&attachment.uid).suspended = Some(done);
            return;
        }
        if error.code == Some(RESOURCE_EXHAUSTED) && done == Operation::Attach && !finished.contended {
            self.wait_for_detach(&newest, &mut error);
        }
        let operation = (newest.uid.clone(), lane);
        self.queue
            .fail(&key, finished, operation, error, self.random.f64());
    }

    /// Records the success of a sync that began with the version `before`.
    fn attachment_succeeded(&mut self, done: Operation, before: &Attachment, newest: &Attachment) {
        let lists = self.lists_published();
        let known = self.attachment_states.entry(before.uid.clone()).or_default();
        known.progress.published = None;
        known.progress.proof = None;
        known.progress.is_confirmed = false;
        if done.is_repair(before) {
            self.rounds.metrics.repaired += u64::from(known.repair.take().is_some());
        } else if newest.finalizer {
            // A regular attach makes a repair unnecessary, unless it was one without a call, which adds no finalizer.
            known.repair = None;
        }
        let was_there = before.attached && newest.recorded.has_same_target(&before.recorded);
        // Only reconcile rounds reset it.
        known.attached_since_round |= lists && newest.attached && !was_there;
    }

    /// The state of a VolumeAttachment that is in the store or is being synced.
    pub(super) fn state_of(&mut self, uid: &Uid) -> &mut AttachmentState {
        self.attachment_states.entry(uid.clone()).or_default()
    }

    fn for_each_state(&mut self, change: impl Fn(&mut AttachmentState)) {
        self.attachment_states.retain(|_, known| {
            change(known);
            *known != AttachmentState::default()
        });
    }

    /// Enqueues the work that the newest state of `key` requires.
    pub(super) fn reevaluate(&mut self, key: &Key) {
        let work = match key {
            Key::Attachment(name) => {
                let attachment = self.index.attachments.get(name);
                attachment.and_then(|attachment| {
                    Some((self.operation(attachment)?.1, Some(attachment.node.clone())))
                })
            }
            Key::Target(target) => {
                let orphan = self.orphans.get(target);
                orphan.map(|orphan| (Lane::Detach, Some(orphan.attachment.node.clone())))
            }
            Key::Volume(name) => match self.volume_item(name) {
                Some(Item::Backfill { .. }) => {
                    self.to_backfill.insert(name.clone());
                    None
                }
                item => item.map(|_| (Lane::PersistentVolume, None)),
            },
        };
        if let Some((lane, node)) = work {
            return self.queue.enqueue(key, lane, node.as_ref());
        }
        self.queue.forget(key);
        // The write turned out to have succeeded. Its result must not replace the call of a later repair.
        if let Key::Attachment(name) = key
            && !self.queue.is_running(key)
            && let Some(attachment) = self.index.attachments.get(name)
            && let Some(known) = self.attachment_states.get_mut(&attachment.uid)
        {
            known.progress.published = None;
            known.progress.proof = None;
        }
    }

    /// Enqueues the work that the newest state of all objects requires, ignoring backoff.
    fn reevaluate_all(&mut self) {
        let attachments = self
            .index
            .attachments
            .iter()
            .map(|a| Key::Attachment(a.name.clone()));
        let volumes = self.index.volumes.iter().map(|v| Key::Volume(v.name.clone()));
        let targets = self.orphans.keys().cloned().map(Key::Target);
        let mut keys: Vec<Key> = attachments.chain(volumes).chain(targets).collect();
        // The store is unordered, and the simulation must be deterministic.
        keys.sort_unstable();
        for key in keys {
            self.reevaluate(&key);
        }
    }

    /// The operation that a VolumeAttachment needs, including repairs that are not suspended, and its lane.
    fn operation(&self, attachment: &Attachment) -> Option<(Operation, Lane)> {
        let nothing = AttachmentState::default();
        let known = self.attachment_states.get(&attachment.uid).unwrap_or(&nothing);
        // If the driver has no publish calls, a published volume stays published: then a wrong status gets it unpublished
        // when the driver has calls again.
        let is_unpublished =
            self.publishes() || attachment.recorded.node_id.is_none() || known.progress.proof.is_some();
        let corrects_status = is_unpublished && plan::has_outdated_status(attachment);
        let operation = plan::operation(attachment, self.publishes())
            .or(known.repair.filter(|repair| repair.is_repair(attachment)))
            .or(corrects_status.then_some(Operation::Detach))?;
        let lane = match operation {
            _ if operation.is_repair(attachment) => Lane::Repair,
            Operation::Attach => Lane::Attach,
            Operation::Detach => Lane::Detach,
        };
        let is_suspended = lane == Lane::Repair && known.suspended == Some(operation);
        (!is_suspended).then_some((operation, lane))
    }

    fn publishes(&self) -> bool {
        self.capabilities.is_none_or(|capabilities| capabilities.publish)
    }
}

const ATTACHES: [Lane; 2] = [Lane::Attach, Lane::Repair];

/// Locks the state. Syncs do so themselves, so it must not be locked while they are polled.
pub fn lock(state: &Mutex<ControllerState>) -> MutexGuard<'_, ControllerState> {
    state
        .lock()
        .expect("nothing must panic while the state is locked")
}

#[cfg(test)]
pub(crate) mod tests;
