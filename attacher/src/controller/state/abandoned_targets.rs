//! Publish targets whose VolumeAttachment was deleted during its attach, so that no detach unpublishes them.

use std::sync::Arc;

use super::{AbandonedTarget, ControllerState, SyncError};
use crate::workqueue::{Class, Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Keeps a target that may be published until its status shows the publish or the volume is unpublished, and abandons it if its
    /// VolumeAttachment is deleted before that, or is deleted already. An attached VolumeAttachment is an exception: a pod may
    /// use the volume, and only an administrator deletes such a VolumeAttachment without a detach.
    pub(crate) fn may_be_published(&mut self, published: AbandonedTarget) {
        let attachment = published.attachment.clone();
        let newest = self.index.attachments.get(&attachment.name);
        match newest.filter(|newest| newest.uid == attachment.uid) {
            _ if attachment.attached => {}
            Some(newest) if newest.attached => {}
            Some(_) => {
                self.state_of(&attachment.uid).unwritten_publish = Some(published);
            }
            None => self.abandon(published),
        }
    }

    /// Enqueues the target until it is unpublished or another VolumeAttachment uses it.
    pub(crate) fn abandon(&mut self, abandoned: AbandonedTarget) {
        let key = Key::Target(abandoned.target.clone());
        let node = abandoned.attachment.node.clone();
        self.abandoned
            .insert(abandoned.target.clone(), Arc::new(abandoned));
        self.queue.enqueue(&key, Lane::Detach, Some(&node));
    }

    pub(super) fn target_finished(
        &mut self,
        abandoned: &Arc<AbandonedTarget>,
        result: Result<(), SyncError>,
    ) {
        let key = Key::Target(abandoned.target.clone());
        let finished = self.queue.finish(&key);
        let is_newest = self.abandoned.get(&abandoned.target) == Some(abandoned);
        match result {
            Ok(()) if is_newest => {
                self.abandoned.remove(&abandoned.target);
                self.evidence.forget_orphan(&abandoned.target);
                self.enqueue_waiting_for(&abandoned.attachment);
                if let Some(volume) = abandoned.attachment.volume_name() {
                    self.reevaluate(&Key::Volume(volume.clone()));
                }
            }
            // Another VolumeAttachment abandoned it meanwhile.
            Ok(()) => self.reevaluate(&key),
            Err(mut error) => {
                // No object exists whose change could end the wait.
                if error.class == Class::Refused {
                    error.class = Class::Final;
                }
                let operation = (abandoned.attachment.uid.clone(), Lane::Detach);
                self.queue
                    .fail(&key, finished, operation, error, self.random.f64());
            }
        }
    }
}
