//! What lives between syncs: events in, work items out, results back in.
//!
//! It joins [`Informer`], [`Queue`] and [`plan`] and is as pure as they are: no await, no client, no clock, and its
//! randomness comes from a seed. [`Controller::run`](super::Controller::run) syncs its [`Item`]s, thousands at once if the
//! lanes allow it, and returns the result of each.
//!
//! Invariants: one sync per key at a time; a sync starts from the newest state; the echo of our own write enqueues nothing;
//! backoff ends early only if something changed that the work depends on.

mod abandoned_targets;
mod deleted_volumes;
mod events;
mod item;
mod reconcile;
mod repair;
mod stats;
mod target_usage;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use stats::{CachesSynced, LatencyMetrics};
pub(crate) use stats::{Pending, QueueStats, Stats};

use super::SyncError;
use crate::informer::{Change, Indexer, Informer};
use crate::model::{Attachment, Capabilities, Node, PublishTarget, Uid, Volume};
use crate::plan::reconcile::ListVolumesResult;
use crate::plan::{self, Operation, release};
use crate::workqueue::{Backoff, Class, Finished, Key, Lane, Limits, Queue};
pub use item::{AbandonedTarget, Item, PendingStatusWrite};
pub use reconcile::{Finding, LastRound, ReconcileMetrics, Round};
use repair::{Repairs, lane};

/// See the module.
#[derive(Debug)]
pub struct ControllerState {
    index: Informer,
    /// Deleted volumes by name, while VolumeAttachments lack their handle.
    deleted_volumes: HashMap<Arc<str>, Arc<Volume>>,
    queue: Queue,
    /// Targets to unpublish although their attachments are gone.
    abandoned: BTreeMap<PublishTarget, Arc<AbandonedTarget>>,
    attachment_states: HashMap<Uid, AttachmentState>,
    /// By node, VolumeAttachments whose last sync failed for lack of capacity, and possibly others.
    resource_exhausted_by_node: Indexer,
    caches_synced: CachesSynced,
    latency: LatencyMetrics,
    random: fastrand::Rng,
    /// The driver's, since its first connection.
    capabilities: Option<Capabilities>,
    repairs: Repairs,
    /// Whether syncs have started: until the caches are synced, a node that is not listed yet looks deleted.
    started: bool,
}

/// What the state knows of a VolumeAttachment besides the stored object.
#[derive(Debug, Default, PartialEq)]
struct AttachmentState {
    /// Its target that may be published although no status says so yet. If the VolumeAttachment goes, it is abandoned.
    unwritten_publish: Option<AbandonedTarget>,
    /// A result of the driver whose write failed. The next sync repeats the write without another call.
    pending: Option<PendingStatusWrite>,
    /// Whether the running sync began before the last reconnect: its result may come from the previous driver process.
    started_before_reconnect: bool,
    /// Whether its record is being changed to another target: the stored one is uncertain.
    node_id_update_pending: bool,
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
    /// A round that [`ControllerState::begin_reconcile`] began is complete.
    VolumesListed(ListVolumesResult, Round),
    /// It failed, for this reason.
    ListVolumesFailed(Round, Arc<str>),
    /// The resync period (`--resync`) is over.
    Resync,
}

// === impl ControllerState ===

impl ControllerState {
    /// A state without objects.
    pub fn new(limits: Limits, backoff: Backoff, seed: u64) -> Self {
        Self {
            index: Informer::default(),
            deleted_volumes: HashMap::new(),
            queue: Queue::new(limits, backoff),
            abandoned: BTreeMap::new(),
            attachment_states: HashMap::new(),
            resource_exhausted_by_node: Indexer::default(),
            caches_synced: CachesSynced::default(),
            latency: LatencyMetrics::default(),
            random: fastrand::Rng::with_seed(seed),
            capabilities: None,
            repairs: Repairs::default(),
            started: false,
        }
    }

    /// Stores the change, and enqueues what it affects.
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

    /// Takes the next item, if one is due and its lane has a free place.
    pub fn start(&mut self, now: Instant) -> Option<Item> {
        self.started = true;
        self.queue.advance(now);
        while let Some((key, lane)) = self.queue.start() {
            let item = match &key {
                Key::Attachment(name) => self.attachment_item(name, lane),
                Key::Volume(name) => self.volume_item(name),
                Key::Target(target) => self.abandoned.get(target).cloned().map(Item::Target),
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

    /// When [`ControllerState::start`] is next worth calling if nothing happens before.
    pub fn next_start(&self) -> Option<Instant> {
        self.queue.next_advance()
    }

    /// Takes the result of an item's sync, and enqueues what follows from it.
    pub fn finish(&mut self, item: &Item, result: Result<(), SyncError>, now: Instant) {
        self.queue.set_now(now);
        match item {
            Item::Attachment {
                attachment,
                operation,
                ..
            } => {
                self.attachment_finished(*operation, attachment, result, now);
                // Most VolumeAttachments rest for long.
                let known = self.attachment_states.get(&attachment.uid);
                if known == Some(&AttachmentState::default()) {
                    self.attachment_states.remove(&attachment.uid);
                }
            }
            Item::Target(abandoned) => self.target_finished(abandoned, result, now),
            Item::Volume(volume) | Item::DeletedVolume { volume, .. } => {
                self.volume_finished(volume, result, now);
            }
        }
    }

    /// The driver's capabilities, once it was connected.
    pub fn capabilities(&self) -> Option<Capabilities> {
        self.capabilities
    }

    /// The stored VolumeAttachment of this name.
    pub fn attachment(&self, name: &str) -> Option<&Arc<Attachment>> {
        self.index.attachment(name)
    }

    /// The stored PersistentVolume of this name.
    pub fn volume(&self, name: &str) -> Option<&Arc<Volume>> {
        self.index.volume(name)
    }

    fn attachment_item(&mut self, name: &str, lane: Lane) -> Option<Item> {
        let attachment = self.index.attachment(name)?.clone();
        let operation = self
            .operation(&attachment)
            .filter(|operation| repair::lane(*operation, &attachment) == lane)?;
        self.mark_dirty(&attachment.name);
        let known = self.attachment_states.get_mut(&attachment.uid);
        Some(Item::Attachment {
            operation,
            pending: known.and_then(|known| known.pending.take()),
            repair: plan::operation(&attachment, self.publishes()).is_none(),
            attachment,
        })
    }

    fn attachment_finished(
        &mut self,
        done: Operation,
        attachment: &Arc<Attachment>,
        result: Result<(), SyncError>,
        now: Instant,
    ) {
        let key = Key::Attachment(attachment.name.clone());
        let mut finished = self.queue.finish(&key);
        self.resource_exhausted_by_node
            .remove(&attachment.node, &attachment.name);
        self.mark_dirty(&attachment.name);
        if result.is_ok() {
            self.repair_finished(done, attachment);
            self.note_newly_attached(attachment);
            if done == Operation::Detach {
                self.enqueue_waiting_for(attachment);
            }
        }
        let started_before_reconnect = self
            .attachment_states
            .get_mut(&attachment.uid)
            .is_some_and(|known| std::mem::take(&mut known.started_before_reconnect));
        let newest = self.index.attachment(&attachment.name).cloned();
        let (Some(newest), Err(error)) = (&newest, result) else {
            return self.enqueue_next(done, attachment, newest.as_ref(), finished, now);
        };
        if newest.uid != attachment.uid || self.operation(newest) != Some(done) {
            self.drop_pending(&attachment.uid);
            return self.enqueue_next(done, attachment, Some(newest), finished, now);
        }
        // The driver came back while this sync reported its absence: no other event will end the wait.
        finished.dirty |= started_before_reconnect && error.class == Class::Disconnected;
        let edited = newest.recorded != attachment.recorded || newest.finalizer != attachment.finalizer;
        if error.class == Class::Refused && self.park(done, newest, finished.dirty || edited) {
            return;
        }
        if error.code == Some(RESOURCE_EXHAUSTED) {
            self.resource_exhausted_by_node.insert(&newest.node, &newest.name);
        }
        let failure = error.into_failure(newest.uid.clone(), lane(done, newest));
        self.queue.fail(&key, finished, failure, now, self.random.f64());
    }

    /// Enqueues what the newest state requires after a sync that left nothing to repeat.
    fn enqueue_next(
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
            // The watch has not shown the result yet. It will; backoff keeps the sync from spinning until then.
            let failure = SyncError::watch_is_late().into_failure(newest.uid.clone(), lane(next, newest));
            self.queue.fail(&key, finished, failure, now, self.random.f64());
        } else {
            self.queue.enqueue(&key, lane(next, newest));
        }
    }

    /// Keeps a result whose write failed for the next sync. To be called by the running sync.
    pub fn keep_pending(&mut self, attachment: &Attachment, write: PendingStatusWrite) {
        let is_known = self
            .index
            .attachment(&attachment.name)
            .is_some_and(|newest| newest.uid == attachment.uid);
        let known = self.state_of(&attachment.uid);
        if is_known && !(write.ends_with_connection() && known.started_before_reconnect) {
            known.pending = Some(write);
        }
    }

    fn state_of(&mut self, uid: &Uid) -> &mut AttachmentState {
        self.attachment_states.entry(uid.clone()).or_default()
    }

    fn pending(&self, uid: &Uid) -> Option<&PendingStatusWrite> {
        self.attachment_states.get(uid)?.pending.as_ref()
    }

    fn drop_pending(&mut self, uid: &Uid) {
        if let Some(known) = self.attachment_states.get_mut(uid) {
            known.pending = None;
        }
    }

    /// Ends the backoff of attaches that may have failed for want of what a detach freed: the volume, or capacity on its
    /// node.
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
            // The status may lack the code, as older API servers do not store it.
            if newest.and_then(|newest| self.queue.failed_with(&key, &newest.uid)) == Some(RESOURCE_EXHAUSTED)
            {
                self.queue.enqueue_if_pending_in(&key, &ATTACHES);
            }
        }
    }

    /// Enqueues what the newest state of `key` requires.
    fn reevaluate(&mut self, key: &Key) {
        let lane = match key {
            Key::Attachment(name) => self
                .index
                .attachment(name)
                .and_then(|attachment| self.lane(attachment)),
            Key::Volume(name) => self.needs_sync(name).then_some(Lane::Volume),
            Key::Target(target) => self.abandoned.contains_key(target).then_some(Lane::Detach),
        };
        match lane {
            Some(lane) => self.queue.enqueue(key, lane),
            None => {
                self.queue.forget(key);
                // The write turned out to have succeeded. Its result must not replace the call of a later repair.
                if let Key::Attachment(name) = key
                    && let Some(attachment) = self.index.attachment(name).cloned()
                    && !self.queue.is_running(key)
                {
                    self.drop_pending(&attachment.uid);
                }
            }
        }
    }

    /// Enqueues what the newest state of all objects requires, whatever their backoff.
    fn reevaluate_all(&mut self) {
        let attachments = self.index.attachments().map(|a| Key::Attachment(a.name.clone()));
        let volumes = self.index.volumes().map(|v| Key::Volume(v.name.clone()));
        let targets = self.abandoned.keys().cloned().map(Key::Target);
        let mut keys: Vec<Key> = attachments.chain(volumes).chain(targets).collect();
        // The store is unordered, and the simulation must be deterministic.
        keys.sort_unstable();
        for key in keys {
            self.reevaluate(&key);
        }
    }

    /// Whether our finalizer must be removed from this PersistentVolume.
    pub fn is_releasable(&self, volume: &str) -> bool {
        self.index.volume(volume).is_some_and(|v| {
            let users = self.index.attachments_of_volume(volume).count() + self.abandoned_of_volume(volume);
            release(v, users, self.publishes())
        })
    }
}

/// The lanes of attaches.
const ATTACHES: [Lane; 2] = [Lane::Attach, Lane::Repair];

/// gRPC's RESOURCE_EXHAUSTED: of ControllerPublishVolume, the node's attach limit is reached.
const RESOURCE_EXHAUSTED: i32 = 8;

/// Locks the state. Syncs do so themselves, so it must not be locked while they are polled.
pub fn lock(state: &Mutex<ControllerState>) -> MutexGuard<'_, ControllerState> {
    state
        .lock()
        .expect("nothing must panic while the state is locked")
}

#[cfg(test)]
pub(crate) mod tests;
