//! PersistentVolumes: our finalizer, and the handles that VolumeAttachments lack.
//!
//! Our attach records the volume's handle on the VolumeAttachment, the Go sidecar's does not. So it is recorded while the
//! PersistentVolume exists, in the background.

use std::sync::Arc;

use super::{ControllerState, Item, SyncError};
use crate::model::{Attachment, Volume};
use crate::plan::{self, AttachInputs};
use crate::workqueue::{Key, Lane};

/// PersistentVolumes per [`ControllerState::backfill`], whose attachments get the handle.
const BACKFILLED_AT_ONCE: usize = 50;

// === impl ControllerState ===

impl ControllerState {
    /// Enqueues some of the volumes whose attachments lack the handle. To be called every few seconds, so that a fleet which the
    /// Go sidecar attached does not use up the requests of attaches.
    pub(crate) fn backfill(&mut self) {
        for _ in 0..BACKFILLED_AT_ONCE {
            let Some(volume) = self.to_backfill.pop_first() else {
                return;
            };
            if self.volume_item(&volume).is_some() {
                self.queue
                    .enqueue(&Key::Volume(volume), Lane::PersistentVolume, None);
            }
        }
    }

    /// `attachment`, with the newest version of its volume and its node.
    pub(crate) fn inputs(&self, attachment: &Arc<Attachment>) -> AttachInputs {
        let volume = attachment.volume_name();
        AttachInputs {
            attachment: attachment.clone(),
            volume: volume.and_then(|name| self.index.volumes.get(name)).cloned(),
            node: self.index.nodes.get(&attachment.node).cloned(),
        }
    }

    /// The inputs of the newest version of the VolumeAttachment with this UID; `None` if it is deleted.
    pub(crate) fn newest_inputs(&self, attachment: &Attachment) -> Option<AttachInputs> {
        self.index.newest(attachment).map(|newest| self.inputs(newest))
    }

    pub(crate) fn removes_pv_finalizer(&self, volume: &str) -> bool {
        let is_of_volume =
            |attachment: &Attachment| attachment.volume_name().is_some_and(|name| **name == *volume);
        self.index.volumes.get(volume).is_some_and(|v| {
            let orphans = self.orphans.values().filter(|o| is_of_volume(&o.attachment));
            let users = self.index.by_volume.get(volume).count() + orphans.count();
            plan::removes_pv_finalizer(v, users)
        })
    }

    pub(super) fn volume_item(&self, name: &str) -> Option<Item> {
        let volume = self.index.volumes.get(name)?;
        let lacking: Vec<_> = self
            .index
            .of_volume(name)
            .filter(|a| plan::lacks_handle_of(volume, a))
            .cloned()
            .collect();
        let volume = volume.clone();
        if !lacking.is_empty() {
            let attachments = lacking;
            return Some(Item::Backfill { volume, attachments });
        }
        self.removes_pv_finalizer(name).then_some(Item::Volume(volume))
    }

    pub(super) fn volume_finished(&mut self, volume: &Arc<Volume>, result: Result<(), SyncError>) {
        let key = Key::Volume(volume.name.clone());
        let finished = self.queue.finish(&key);
        if self.volume_item(&volume.name).is_some() {
            let error = result.err().unwrap_or_else(SyncError::watch_is_late);
            let operation = (volume.uid.clone(), Lane::PersistentVolume);
            self.queue
                .fail(&key, finished, operation, error, self.random.f64());
        }
    }
}
