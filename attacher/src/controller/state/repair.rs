//! Repairs: work that the VolumeAttachment's own state does not require.
//!
//! Reconcile requests them. They are kept in memory; after a crash the next round
//! finds them again. Others follow from the status: an attached volume has an error, or a detached one says attached. They
//! have a lane of their own: a driver that lost all its volumes causes thousands of them, and a first attach must not wait
//! behind volumes that may be in use.
//!
//! A refused repair is suspended until its VolumeAttachment, PersistentVolume or CSINode or the driver's capabilities change.
//! No pod waits for it, and each retry would repeat the same Event.

use super::{ControllerState, Finding};
use crate::model::Attachment;
use crate::plan::Operation;
use crate::plan::reconcile::Candidate;
use crate::workqueue::{Key, Lane};

/// Evidence of earlier rounds against a VolumeAttachment.
#[derive(Clone, Debug, Default, PartialEq)]
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
    pub(super) fn repair(&mut self, candidate: Candidate, repair: Operation) {
        let attachment = candidate.attachment;
        let target = candidate.expected.target;
        let is_in_use = repair == Operation::Detach && self.is_used_by_another(&attachment, &target);
        let round = self.rounds.metrics.rounds;
        let known = self.state_of(&attachment.uid);
        if is_in_use || known.repair == Some(repair) {
            return;
        }
        let suspect = known.suspect.get_or_insert_default();
        suspect.round = round;
        if let Some(left) = suspect.pass.checked_sub(1) {
            suspect.pass = left;
            return;
        }
        suspect.repaired += 1;
        let times = suspect.repaired;
        suspect.pass = 1u32
            .checked_shl(times - 1)
            .map_or(MOST_PASSED, |twice| (twice - 1).min(MOST_PASSED));
        known.repair = Some(repair);
        let waits = known.suspended == Some(repair);
        match repair {
            Operation::Attach => self.rounds.metrics.lost += 1,
            Operation::Detach => self.rounds.metrics.dangling += 1,
        }
        self.queue.enqueue(
            &Key::Attachment(attachment.name.clone()),
            Lane::Repair,
            Some(&attachment.node),
        );
        self.findings.push(Finding::Drift {
            attachment,
            target,
            repair,
            waits,
            times,
        });
    }

    /// The driver lists the volume as expected. A repair in backoff is retried at once; a suspended one is over.
    pub(super) fn listed_in_sync(&mut self, attachment: &Attachment) {
        if let Some(known) = self.attachment_states.get_mut(&attachment.uid) {
            known.suspect = None;
            if known.suspended == Some(Operation::Attach) {
                known.repair = None;
                return;
            }
        }
        if self
            .operation(attachment)
            .is_some_and(|(_, lane)| lane == Lane::Repair)
        {
            let key = Key::Attachment(attachment.name.clone());
            self.queue.enqueue_if_pending(&key, &Lane::ALL);
        }
    }

    /// Requests a republish, as a round does.
    #[cfg(test)]
    pub(crate) fn attach_again(&mut self, attachment: &Attachment) {
        self.state_of(&attachment.uid).repair = Some(Operation::Attach);
        self.queue.enqueue(
            &Key::Attachment(attachment.name.clone()),
            Lane::Repair,
            Some(&attachment.node),
        );
    }
}

#[cfg(test)]
mod tests;
