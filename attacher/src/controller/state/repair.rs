//! Repairs: work that is wanted although the attachment's own state asks for nothing.
//!
//! A survey asks for them, or a driver that has calls again. They are remembered here alone; after a crash the next
//! survey finds them again. Some the status asks for: it tells an error of an attached volume, or is wrong about a
//! detached one. They have a lane of their own: a driver that lost everything makes thousands of them,
//! and a pod that waits for its first attach is not to stand in line behind volumes that may well be in use.
//!
//! A repair that is refused rests until something changes of what it depends on: its VolumeAttachment,
//! PersistentVolume or CSINode, or what the driver can do. Nobody waits for it as somebody does for a first attach,
//! and to try it again and again would tell people the same each time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::reconcile::{Fault, Finding, LastRound, ReconcileMetrics};
use super::{ControllerState, PendingStatusWrite};
use crate::model::{Attachment, Uid};
use crate::plan::reconcile::Subject;
use crate::plan::{self, Operation, TargetUsage, UsedBy};
use crate::workqueue::{Key, Lane};

/// What the state knows of surveys and repairs.
#[derive(Debug, Default)]
pub(super) struct Repairs {
    /// While a survey is under way: attachments that changed or had work since it began.
    pub(super) dirty: Option<HashSet<Arc<str>>>,
    /// Attachments that were attached, or attached elsewhere, since the last survey began.
    pub(super) fresh: HashSet<Uid>,
    /// Those that were so when the survey that is under way began. A list may be older than they are.
    pub(super) young: HashSet<Uid>,
    pub(super) wanted: HashMap<Uid, Operation>,
    /// Those that were refused, until something changes.
    pub(super) parked: HashMap<Uid, Operation>,
    pub(super) suspects: HashMap<Uid, SuspectState>,
    pub(super) findings: Vec<Finding>,
    pub(super) tally: ReconcileMetrics,
    pub(super) last: Option<LastRound>,
}

/// What earlier surveys said against an attachment.
#[derive(Debug, Default)]
pub(super) struct SuspectState {
    /// The last survey that spoke against it.
    pub(super) round: u64,
    repaired: u32,
    pass: u32,
}

/// A list that denies what was just repaired may be wrong every time: a driver that does not list all of
/// its volumes, say. After the second repair in a row 1 survey is passed over, then 3, 7 and so on up to
/// this many.
const MOST_PASSED: u32 = 63;

// === impl ControllerState ===

impl ControllerState {
    pub(super) fn repair(&mut self, subject: Subject, wanted: Operation) {
        let Subject {
            attachment,
            whereabouts,
            ..
        } = subject;
        let target = whereabouts.target;
        let held = || self.usage_besides(&attachment, &target, UsedBy::Record);
        let is_needed = wanted == Operation::Detach && held() != TargetUsage::Unused;
        self.distrust(&attachment);
        if is_needed || self.repairs.wanted.get(&attachment.uid) == Some(&wanted) {
            return;
        }
        let doubt = self.repairs.suspects.entry(attachment.uid.clone()).or_default();
        doubt.round = self.repairs.tally.rounds;
        if let Some(left) = doubt.pass.checked_sub(1) {
            doubt.pass = left;
            return;
        }
        doubt.repaired += 1;
        let times = doubt.repaired;
        doubt.pass = 1u32
            .checked_shl(times - 1)
            .map_or(MOST_PASSED, |twice| (twice - 1).min(MOST_PASSED));
        let (fault, count) = match wanted {
            Operation::Attach => (Fault::Lost, &mut self.repairs.tally.lost),
            Operation::Detach => (Fault::Leftover, &mut self.repairs.tally.leftover),
        };
        *count += 1;
        self.repairs.wanted.insert(attachment.uid.clone(), wanted);
        self.queue
            .enqueue(&Key::Attachment(attachment.name.clone()), Lane::Repair);
        self.repairs.findings.push(Finding {
            attachment,
            target,
            fault,
            times,
        });
    }

    /// The work that an attachment waits for, repairs included, but for those that rest.
    pub(super) fn operation(&self, attachment: &Attachment) -> Option<Operation> {
        let wanted = plan::operation(attachment, self.publishes())
            .or_else(|| self.wanted_repair(attachment))
            .or_else(|| self.is_to_be_marked(attachment).then_some(Operation::Detach))?;
        (!self.is_parked(wanted, attachment)).then_some(wanted)
    }

    /// Whether the status of an attachment that was let go of is to be put right. With a driver that has no
    /// calls, what was published once stays so: then the status, as it is, gets it unpublished when the driver
    /// has calls again.
    fn is_to_be_marked(&self, attachment: &Attachment) -> bool {
        let is_unpublished = || self.pending.get(&attachment.uid) == Some(&PendingStatusWrite::Unpublished);
        let is_known = || self.publishes() || attachment.recorded.node_id.is_none() || is_unpublished();
        plan::has_stale_status(attachment) && is_known()
    }

    fn is_parked(&self, wanted: Operation, attachment: &Attachment) -> bool {
        is_repair(wanted, attachment) && self.repairs.parked.get(&attachment.uid) == Some(&wanted)
    }

    /// To be told of work that was refused. Says whether it rests from now on: only a repair does, and not if
    /// something has changed since it began.
    pub(super) fn park(&mut self, wanted: Operation, attachment: &Attachment, changed: bool) -> bool {
        let rests = is_repair(wanted, attachment) && !changed;
        if rests {
            self.repairs.parked.insert(attachment.uid.clone(), wanted);
            self.repairs.tally.refused += 1;
        }
        rests
    }

    /// Something changed that work on the attachment of this name depends on: it does not wait, nor rest, any
    /// longer.
    pub(super) fn requeue(&mut self, name: &Arc<str>) {
        let key = Key::Attachment(name.clone());
        let rested = self
            .index
            .attachment(name)
            .and_then(|attachment| self.repairs.parked.remove(&attachment.uid));
        if rested.is_some() {
            self.reevaluate(&key);
        } else {
            self.queue.enqueue_if_pending(&key);
        }
    }

    /// The driver lists the volume of the attachment where it should be. A repair that waits is tried once more
    /// and will find that; one that rests is over, and what the status tells of it is outdated.
    pub(super) fn in_order(&mut self, attachment: &Attachment) {
        let uid = &attachment.uid;
        let key = Key::Attachment(attachment.name.clone());
        self.repairs.suspects.remove(uid);
        if self.is_parked(Operation::Attach, attachment) {
            self.repairs.wanted.remove(uid);
            if attachment.attach_error.is_some() && !self.pending.contains_key(uid) {
                self.pending.insert(uid.clone(), PendingStatusWrite::Listed);
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

    /// The driver's list says otherwise by now.
    fn distrust(&mut self, attachment: &Attachment) {
        if self.pending.get(&attachment.uid) == Some(&PendingStatusWrite::Listed) {
            self.pending.remove(&attachment.uid);
        }
    }

    /// The lane of that work.
    pub(super) fn lane(&self, attachment: &Attachment) -> Option<Lane> {
        self.operation(attachment).map(|wanted| lane(wanted, attachment))
    }

    /// Has an attachment attached again that asks for nothing, and goes on until that works.
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

    /// `attachment` is what the job began with.
    pub(super) fn repair_finished(&mut self, wanted: Operation, attachment: &Attachment) {
        // An attach that is no repair makes one unnecessary, if it was one with a call: while the driver
        // had none, nothing was published, and no finalizer says so.
        let is_guarded = self
            .index
            .attachment(&attachment.name)
            .is_some_and(|newest| newest.finalizer);
        if is_repair(wanted, attachment) {
            if self.repairs.wanted.remove(&attachment.uid).is_some() {
                self.repairs.tally.repaired += 1;
            }
        } else if is_guarded {
            self.repairs.wanted.remove(&attachment.uid);
        }
    }

    /// Notes whether work that began with `before` brought the volume to where the driver's list, which may come
    /// from a cache, will not show it at first.
    pub(super) fn note_fresh(&mut self, before: &Attachment) {
        let newest = self.index.attachment(&before.name);
        let moved = newest.is_some_and(|newest| {
            newest.uid == before.uid
                && newest.attached
                && !(before.attached && newest.recorded.is_at_one_with(&before.recorded))
        });
        if moved {
            self.repairs.fresh.insert(before.uid.clone());
        }
    }

    pub(super) fn forget_repairs(&mut self, attachment: &Attachment) {
        self.repairs.fresh.remove(&attachment.uid);
        self.repairs.young.remove(&attachment.uid);
        self.repairs.wanted.remove(&attachment.uid);
        self.repairs.parked.remove(&attachment.uid);
        self.repairs.suspects.remove(&attachment.uid);
    }
}

/// The lane in which an attachment in this state is worked on.
pub(super) fn lane(wanted: Operation, attachment: &Attachment) -> Lane {
    match wanted {
        _ if is_repair(wanted, attachment) => Lane::Repair,
        Operation::Attach => Lane::Attach,
        Operation::Detach => Lane::Detach,
    }
}

/// Whether work on the attachment in this state is a repair: the state itself asks for nothing.
fn is_repair(wanted: Operation, attachment: &Attachment) -> bool {
    match wanted {
        Operation::Attach => attachment.attached && !attachment.deleting,
        Operation::Detach => attachment.deleting && !attachment.finalizer,
    }
}

#[cfg(test)]
mod tests;
