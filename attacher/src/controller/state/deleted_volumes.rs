//! PersistentVolumes that are deleted before their VolumeAttachments.
//!
//! Our attach records the volume's handle on the VolumeAttachment, the Go sidecar's does not. So a deleted volume is kept
//! until the VolumeAttachments have its handle.

use std::sync::Arc;
use std::time::Instant;

use super::{ControllerState, Item, SyncError};
use crate::model::{Attachment, Volume};
use crate::plan::AttachInputs;
use crate::workqueue::{Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Keeps a deleted volume whose handle is missing on VolumeAttachments.
    pub(super) fn remember_deleted(&mut self, volume: &Arc<Volume>) {
        // Of two volumes of one name, the VolumeAttachments were published with the handle of the first.
        if volume.spec.csi().is_some() && self.attachments_missing_id(&volume.name).next().is_some() {
            let name = volume.name.clone();
            self.deleted_volumes.entry(name).or_insert_with(|| volume.clone());
        }
    }

    /// Drops a deleted volume whose handle no VolumeAttachment lacks any more.
    pub(super) fn forget_deleted(&mut self, volume: &str) {
        if self.deleted_volumes.contains_key(volume) && self.attachments_missing_id(volume).next().is_none() {
            self.deleted_volumes.remove(volume);
        }
    }

    /// The newest version of this very VolumeAttachment, its volume and its node.
    pub fn inputs(&self, attachment: &Attachment) -> Option<AttachInputs> {
        let newest = self.index.attachment(&attachment.name)?;
        (newest.uid == attachment.uid).then(|| self.inputs_of(newest))
    }

    /// `attachment`, with the newest version of its volume and its node.
    pub fn inputs_of(&self, attachment: &Arc<Attachment>) -> AttachInputs {
        let inputs = self.index.inputs(attachment);
        let deleted = attachment
            .volume_name()
            .and_then(|name| self.deleted_volumes.get(name))
            .filter(|_| attachment.deleting && is_missing_id(attachment));
        AttachInputs {
            volume: deleted.cloned().or(inputs.volume),
            ..inputs
        }
    }

    /// Whether anything must be written for the volume of this name.
    pub(super) fn needs_sync(&self, volume: &str) -> bool {
        let is_missed =
            self.deleted_volumes.contains_key(volume) && self.attachments_missing_id(volume).next().is_some();
        is_missed || self.is_releasable(volume)
    }

    pub(super) fn volume_item(&self, name: &str) -> Option<Item> {
        if let Some(volume) = self.deleted_volumes.get(name) {
            let attachments: Vec<_> = self.attachments_missing_id(name).cloned().collect();
            if !attachments.is_empty() {
                let volume = volume.clone();
                return Some(Item::DeletedVolume { volume, attachments });
            }
        }
        let volume = self.index.volume(name).filter(|_| self.is_releasable(name))?;
        Some(Item::Volume(volume.clone()))
    }

    pub(super) fn volume_finished(
        &mut self,
        volume: &Arc<Volume>,
        result: Result<(), SyncError>,
        now: Instant,
    ) {
        let key = Key::Volume(volume.name.clone());
        let finished = self.queue.finish(&key);
        if !self.needs_sync(&volume.name) {
            return;
        }
        let error = result.err().unwrap_or_else(SyncError::watch_is_late);
        let failure = error.into_failure(volume.uid.clone(), Lane::Volume);
        self.queue.fail(&key, finished, failure, now, self.random.f64());
    }

    fn attachments_missing_id(&self, volume: &str) -> impl Iterator<Item = &Arc<Attachment>> {
        self.index
            .attachments_of_volume(volume)
            .filter_map(|name| self.index.attachment(name))
            .filter(|attachment| is_missing_id(attachment))
    }
}

/// Whether a volume may be published for it whose handle it does not record.
fn is_missing_id(attachment: &Attachment) -> bool {
    attachment.finalizer && attachment.recorded.handle.is_none()
}
