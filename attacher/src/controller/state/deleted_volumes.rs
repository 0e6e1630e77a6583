//! PersistentVolumes: the removal of our finalizer, and the data kept of those that are deleted before their
//! VolumeAttachments.
//!
//! Our attach records the volume's handle on the VolumeAttachment, the Go sidecar's does not. So a deleted volume is kept
//! until the VolumeAttachments have its handle.

use std::sync::Arc;

use super::{ControllerState, Item, SyncError};
use crate::model::{Attachment, Volume};
use crate::plan::{self, AttachInputs};
use crate::workqueue::{Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Keeps a deleted volume whose handle is missing on VolumeAttachments.
    pub(super) fn remember_deleted(&mut self, volume: &Arc<Volume>) {
        // Of two volumes of one name, the VolumeAttachments were published with the handle of the first.
        if volume.spec.csi.is_ok() && self.attachments_missing_id(&volume.name).next().is_some() {
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

    /// Whether a deleted volume may be published for the VolumeAttachment, which does not record its handle yet: until
    /// then an attach of the volume's successor would overwrite the only reference to it.
    pub(crate) fn waits_for_volume_id(&self, attachment: &Attachment) -> bool {
        let volume = attachment.volume_name();
        volume.is_some_and(|volume| self.deleted_volumes.contains_key(volume))
            && self
                .index
                .attachments
                .get(&attachment.name)
                .is_some_and(is_missing_id)
    }

    /// `attachment`, with the newest version of its volume and its node.
    pub(crate) fn inputs(&self, attachment: &Arc<Attachment>) -> AttachInputs {
        let volume = attachment.volume_name().and_then(|name| {
            let deleted = self.deleted_volumes.get(name);
            let deleted = deleted.filter(|_| attachment.deleting && is_missing_id(attachment));
            deleted.or_else(|| self.index.volumes.get(name))
        });
        AttachInputs {
            attachment: attachment.clone(),
            volume: volume.cloned(),
            node: self.index.nodes.get(&attachment.node).cloned(),
        }
    }

    /// The inputs of the newest version of the VolumeAttachment with this UID; `None` if it is deleted.
    pub(crate) fn newest_inputs(&self, attachment: &Attachment) -> Option<AttachInputs> {
        let newest = self.index.attachments.get(&attachment.name)?;
        (newest.uid == attachment.uid).then(|| self.inputs(newest))
    }

    /// The id that the CSINode of the VolumeAttachment's node shows now.
    pub(crate) fn present_node_id(&self, attachment: &Attachment) -> Option<Arc<str>> {
        self.index.nodes.get(&attachment.node)?.id.clone()
    }

    /// Whether our finalizer must be removed from this PersistentVolume.
    pub(crate) fn removes_pv_finalizer(&self, volume: &str) -> bool {
        let is_of_volume =
            |attachment: &Attachment| attachment.volume_name().is_some_and(|name| **name == *volume);
        self.index.volumes.get(volume).is_some_and(|v| {
            let abandoned = self.abandoned.values().filter(|a| is_of_volume(&a.attachment));
            let users = self.index.by_volume.get(volume).count() + abandoned.count();
            plan::removes_pv_finalizer(v, users, self.publishes())
        })
    }

    /// The work item for the volume of this name, if any.
    pub(super) fn volume_item(&self, name: &str) -> Option<Item> {
        if let Some(volume) = self.deleted_volumes.get(name) {
            let attachments: Vec<_> = self.attachments_missing_id(name).cloned().collect();
            if !attachments.is_empty() {
                let volume = volume.clone();
                return Some(Item::DeletedVolume { volume, attachments });
            }
        }
        let volume = self
            .index
            .volumes
            .get(name)
            .filter(|_| self.removes_pv_finalizer(name))?;
        Some(Item::Volume(volume.clone()))
    }

    pub(super) fn volume_finished(&mut self, volume: &Arc<Volume>, result: Result<(), SyncError>) {
        let key = Key::Volume(volume.name.clone());
        let finished = self.queue.finish(&key);
        if self.volume_item(&volume.name).is_some() {
            let error = result.err().unwrap_or_else(SyncError::watch_is_late);
            let operation = (volume.uid.clone(), Lane::Volume);
            self.queue
                .fail(&key, finished, operation, error, self.random.f64());
        }
    }

    fn attachments_missing_id(&self, volume: &str) -> impl Iterator<Item = &Arc<Attachment>> {
        let attachments = self.index.by_volume.get(volume);
        attachments
            .filter_map(|name| self.index.attachments.get(name))
            .filter(|attachment| is_missing_id(attachment))
    }
}

/// Whether a volume may be published for it whose handle it does not record.
fn is_missing_id(attachment: &Arc<Attachment>) -> bool {
    attachment.finalizer && attachment.recorded.handle.is_none()
}
