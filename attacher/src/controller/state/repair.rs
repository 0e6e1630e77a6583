//! Repairs: work that the VolumeAttachment's own state does not require.
//!
//! Reconcile requests them, or a driver that has publish calls again. They are kept in memory; after a crash the next round
//! finds them again. Others follow from the status: an attached volume has an error, or a detached one says attached. They
//! have a lane of their own: a driver that lost all its volumes causes thousands of them, and a first attach must not wait
//! behind volumes that may be in use.
//!
//! A refused repair is parked until its VolumeAttachment, PersistentVolume or CSINode or the driver's capabilities change.
//! No pod waits for it, and each retry would repeat the same Event.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::reconcile::{Finding, LastRound, ReconcileMetrics};
use super::{ControllerState, PendingStatusWrite};
use crate::model::{Attachment, Uid};
use crate::plan::reconcile::Candidate;
use crate::plan::{self, Operation, TargetUsage, UsedBy};
use crate::workqueue::{Key, Lane};

/// Reconcile rounds and repairs.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// During a round: VolumeAttachments that changed or were synced since it began.
    pub(super) dirty: Option<HashSet<Arc<str>>>,
    /// VolumeAttachments that were attached, or attached elsewhere, since the last round began.
    pub(super) attached_since_round: HashSet<Uid>,
    /// Those of the previous rounds. The driver's list may be older than they are.
    pub(super) newly_attached: HashSet<Uid>,
    pub(super) wanted: HashMap<Uid, Operation>,
    /// Refused repairs, until something changes.
    pub(super) parked: HashMap<Uid, Operation>,
    pub(super) suspects: HashMap<Uid, SuspectState>,
    pub(super) findings: Vec<Finding>,
    pub(super) metrics: ReconcileMetrics,
    pub(super) last: Option<LastRound>,
}

/// Evidence of earlier rounds against a VolumeAttachment.
#[derive(Debug, Default)]
pub(super) struct SuspectState {
    /// The last round with evidence.
    pub(super) round: u64,
    repaired: u32,
    pass: u32,
}

/// If ListVolumes keeps contradicting repairs, back off: the driver may not list all of its volumes. After the second repair
/// in a row 1 round is skipped, then 3, 7 and so on up to this many.
const MOST_PASSED: u32 = 63;

// === impl ControllerState ===

impl ControllerState {
    pub(super) fn repair(&mut self, candidate: Candidate, wanted: Operation) {
        let Candidate {
            attachment, expected, ..
        } = candidate;
        let target = expected.target;
        let held = || self.usage_besides(&attachment, &target, UsedBy::Record);
        let is_needed = wanted == Operation::Detach && held() != TargetUsage::Unused;
        self.discard_listed(&attachment);
        if is_needed || self.repairs.wanted.get(&attachment.uid) == Some(&wanted) {
            return;
        }
        let suspect = self.repairs.suspects.entry(attachment.uid.clone()).or_default();
        suspect.round = self.repairs.metrics.rounds;
        if let Some(left) = suspect.pass.checked_sub(1) {
            suspect.pass = left;
            return;
        }
        suspect.repaired += 1;
        let times = suspect.repaired;
        suspect.pass = 1u32
            .checked_shl(times - 1)
            .map_or(MOST_PASSED, |twice| (twice - 1).min(MOST_PASSED));
        match wanted {
            Operation::Attach => self.repairs.metrics.lost += 1,
            Operation::Detach => self.repairs.metrics.leftover += 1,
        }
        self.repairs.wanted.insert(attachment.uid.clone(), wanted);
        self.queue
            .enqueue(&Key::Attachment(attachment.name.clone()), Lane::Repair);
        self.repairs.findings.push(Finding {
            attachment,
            target,
            repair: wanted,
            times,
        });
    }

    /// The operation that a VolumeAttachment needs, including repairs that are not parked.
    pub(super) fn operation(&self, attachment: &Attachment) -> Option<Operation> {
        let wanted = plan::operation(attachment, self.publishes())
            .or_else(|| self.wanted_repair(attachment))
            .or_else(|| self.is_to_be_marked(attachment).then_some(Operation::Detach))?;
        (!self.is_parked(wanted, attachment)).then_some(wanted)
    }

    /// Whether the status of a VolumeAttachment without our finalizer must be corrected. If the driver has no publish calls, a
    /// published volume stays published: then the wrong status gets it unpublished when the driver has calls again.
    fn is_to_be_marked(&self, attachment: &Attachment) -> bool {
        let is_unpublished = || self.pending(&attachment.uid) == Some(&PendingStatusWrite::Unpublished);
        let is_known = || self.publishes() || attachment.recorded.node_id.is_none() || is_unpublished();
        plan::has_stale_status(attachment) && is_known()
    }

    fn is_parked(&self, wanted: Operation, attachment: &Attachment) -> bool {
        is_repair(wanted, attachment) && self.repairs.parked.get(&attachment.uid) == Some(&wanted)
    }

    /// Parks refused work, if it is a repair and nothing has changed since it began. Says whether it is parked.
    pub(super) fn park(&mut self, wanted: Operation, attachment: &Attachment, changed: bool) -> bool {
        let parks = is_repair(wanted, attachment) && !changed;
        if parks {
            self.repairs.parked.insert(attachment.uid.clone(), wanted);
            self.repairs.metrics.refused += 1;
        }
        parks
    }

    /// Ends the backoff of a VolumeAttachment and unparks it, as something changed that it depends on.
    pub(super) fn requeue(&mut self, name: &Arc<str>) {
        let key = Key::Attachment(name.clone());
        let was_parked = self
            .index
            .attachment(name)
            .and_then(|attachment| self.repairs.parked.remove(&attachment.uid));
        if was_parked.is_some() {
            self.reevaluate(&key);
        } else {
            self.queue.enqueue_if_pending(&key);
        }
    }

    /// The driver lists the volume as expected. A repair in backoff is retried at once; a parked one is over, and the error in
    /// the status outdated.
    pub(super) fn listed_in_sync(&mut self, attachment: &Attachment) {
        let uid = &attachment.uid;
        let key = Key::Attachment(attachment.name.clone());
        self.repairs.suspects.remove(uid);
        if self.is_parked(Operation::Attach, attachment) {
            self.repairs.wanted.remove(uid);
            if attachment.attach_error.is_some() && self.pending(uid).is_none() {
                self.state_of(uid).pending = Some(PendingStatusWrite::Listed);
                self.repairs.parked.remove(uid);
                self.queue.enqueue(&key, Lane::Repair);
            }
        } else if self
            .operation(attachment)
            .is_some_and(|wanted| is_repair(wanted, attachment))
        {
            self.queue.enqueue_if_pending(&key);
        }
    }

    /// The driver's list contradicts an earlier one.
    fn discard_listed(&mut self, attachment: &Attachment) {
        if self.pending(&attachment.uid) == Some(&PendingStatusWrite::Listed) {
            self.drop_pending(&attachment.uid);
        }
    }

    /// The lane of that work.
    pub(super) fn lane(&self, attachment: &Attachment) -> Option<Lane> {
        self.operation(attachment).map(|wanted| lane(wanted, attachment))
    }

    /// Enqueues a republish, and keeps it until it succeeds.
    pub fn attach_again(&mut self, attachment: &Attachment) {
        let before = self
            .repairs
            .wanted
            .insert(attachment.uid.clone(), Operation::Attach);
        if before.is_none() {
            self.queue
                .enqueue(&Key::Attachment(attachment.name.clone()), Lane::Repair);
        }
    }

    pub(super) fn wanted_repair(&self, attachment: &Attachment) -> Option<Operation> {
        let wanted = *self.repairs.wanted.get(&attachment.uid)?;
        is_repair(wanted, attachment).then_some(wanted)
    }

    /// `attachment` is the version that the sync began with.
    pub(super) fn repair_finished(&mut self, wanted: Operation, attachment: &Attachment) {
        // A regular attach makes a repair unnecessary, unless it was one without a call, which adds no finalizer.
        let has_finalizer = self
            .index
            .attachment(&attachment.name)
            .is_some_and(|newest| newest.finalizer);
        if is_repair(wanted, attachment) {
            if self.repairs.wanted.remove(&attachment.uid).is_some() {
                self.repairs.metrics.repaired += 1;
            }
        } else if has_finalizer {
            self.repairs.wanted.remove(&attachment.uid);
        }
    }

    /// Notes whether a sync that began with `before` attached the volume, which a list from a cache may not show yet.
    pub(super) fn note_newly_attached(&mut self, before: &Attachment) {
        let newest = self.index.attachment(&before.name);
        let attached = newest.is_some_and(|newest| {
            newest.uid == before.uid
                && newest.attached
                && !(before.attached && newest.recorded.has_same_target(&before.recorded))
        });
        if attached {
            self.repairs.attached_since_round.insert(before.uid.clone());
        }
    }

    pub(super) fn forget_repairs(&mut self, attachment: &Attachment) {
        self.repairs.attached_since_round.remove(&attachment.uid);
        self.repairs.newly_attached.remove(&attachment.uid);
        self.repairs.wanted.remove(&attachment.uid);
        self.repairs.parked.remove(&attachment.uid);
        self.repairs.suspects.remove(&attachment.uid);
    }
}

/// The lane of an operation on a VolumeAttachment in this state.
pub(super) fn lane(wanted: Operation, attachment: &Attachment) -> Lane {
    match wanted {
        _ if is_repair(wanted, attachment) => Lane::Repair,
        Operation::Attach => Lane::Attach,
        Operation::Detach => Lane::Detach,
    }
}

/// Whether the operation is a repair: the state itself does not require it.
fn is_repair(wanted: Operation, attachment: &Attachment) -> bool {
    match wanted {
        Operation::Attach => attachment.attached && !attachment.deleting,
        Operation::Detach => attachment.deleting && !attachment.finalizer,
    }
}

#[cfg(test)]
mod tests;
