//! PersistentVolumes that are gone before their attachments are.
//!
//! What we attach has its volume's handle on record. What the Go sidecar attached has not, and with the
//! volume nobody would know any more what to unpublish. So the volume is remembered until the attachments
//! have its handle.

use std::sync::Arc;
use std::time::Instant;

use super::{ControllerState, Job, LATE, Outcome};
use crate::model::{Attachment, Volume};
use crate::plan::AttachInputs;
use crate::workqueue::{Class, Failed, Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// To be told of each volume that is gone.
    pub(super) fn remember_gone(&mut self, volume: &Arc<Volume>) {
        // Of two of one name, the attachments were published by the handle of the first.
        if volume.spec.csi().is_some() && self.attachments_missing_id(&volume.name).next().is_some() {
            let name = volume.name.clone();
            self.gone_volumes.entry(name).or_insert_with(|| volume.clone());
        }
    }

    /// To be told when an attachment of this volume changed.
    pub(super) fn forget_gone(&mut self, volume: &str) {
        if self.gone_volumes.contains_key(volume) && self.attachments_missing_id(volume).next().is_none() {
            self.gone_volumes.remove(volume);
        }
    }

    /// The volume that the attachment was published as, where the attachment does not tell and the volume is
    /// gone.
    pub(super) fn gone_volume_of(&self, attachment: &Attachment) -> Option<&Arc<Volume>> {
        let gone = self.gone_volumes.get(attachment.volume_name()?)?;
        is_missing_id(attachment).then_some(gone)
    }

    /// What is known now about this very VolumeAttachment, its volume and its node.
    pub fn facts(&self, known: &Attachment) -> Option<AttachInputs> {
        let newest = self.index.attachment(&known.name)?;
        (newest.uid == known.uid).then(|| {
            let facts = self.index.facts(newest);
            let gone = self.gone_volume_of(newest).filter(|_| newest.deleting);
            AttachInputs {
                volume: gone.cloned().or(facts.volume),
                ..facts
            }
        })
    }

    /// Whether anything is to be written for the volume of this name.
    pub(super) fn wants_work_on(&self, volume: &str) -> bool {
        let is_missed =
            self.gone_volumes.contains_key(volume) && self.attachments_missing_id(volume).next().is_some();
        is_missed || self.is_releasable(volume)
    }

    /// What is left of a volume for its attachments.
    pub(super) fn record_volume_id(&self, volume: &str) -> Option<Job> {
        let gone = self.gone_volumes.get(volume)?.clone();
        let attachments_missing_id: Vec<_> = self.attachments_missing_id(volume).cloned().collect();
        (!attachments_missing_id.is_empty()).then_some(Job::RecordVolumeId {
            volume: gone,
            attachments: attachments_missing_id,
        })
    }

    pub(super) fn volume_finished(&mut self, volume: &Arc<Volume>, outcome: Outcome, now: Instant) {
        let key = Key::Volume(volume.name.clone());
        let finished = self.queue.finish(&key);
        if !self.wants_work_on(&volume.name) {
            return;
        }
        let (class, code, message, retry_after) = match outcome {
            Outcome::Done => (Class::Final, None, LATE.into(), None),
            Outcome::Failed {
                class,
                code,
                message,
                retry_after,
                ..
            } => (class, code, message, retry_after),
        };
        let failed = Failed {
            uid: volume.uid.clone(),
            lane: Lane::Volume,
            class,
            code,
            message,
            retry_after,
        };
        self.queue.fail(&key, finished, failed, now, self.random.f64());
    }

    fn attachments_missing_id(&self, volume: &str) -> impl Iterator<Item = &Arc<Attachment>> {
        self.index
            .attachments_of_volume(volume)
            .filter_map(|name| self.index.attachment(name))
            .filter(|attachment| is_missing_id(attachment))
    }
}

/// Whether something may be published for it and it does not say what.
fn is_missing_id(attachment: &Attachment) -> bool {
    attachment.finalizer && attachment.recorded.handle.is_none()
}
