//! Orphans: publish targets that no VolumeAttachment records any more, so that no detach unpublishes them.

use std::sync::Arc;

use super::{ControllerState, SyncError};
use crate::model::handle::may_be_same_volume;
use crate::model::{Attachment, PublishTarget};
use crate::plan::{Orphan, PublishEnd};
use crate::workqueue::{Class, Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Keeps a target that may be published until its status shows the publish or the volume is unpublished. It becomes an
    /// orphan if its VolumeAttachment is deleted before that, or is deleted already. An attached VolumeAttachment is an exception: a
    /// pod may use the volume, and only an administrator deletes such a VolumeAttachment without a detach.
    pub(crate) fn may_be_published(&mut self, published: Orphan) {
        let attachment = published.attachment.clone();
        match self.index.newest(&attachment) {
            _ if attachment.attached => {}
            Some(newest) if newest.attached => {}
            Some(_) => {
                self.state_of(&attachment.uid).progress.uncertain = Some(published);
            }
            None => self.add_orphan(published),
        }
    }

    /// Enqueues the target until it is unpublished or another VolumeAttachment uses it.
    pub(crate) fn add_orphan(&mut self, orphan: Orphan) {
        let key = Key::Target(orphan.target.clone());
        let node = orphan.attachment.node.clone();
        self.orphans.insert(orphan.target.clone(), Arc::new(orphan));
        self.queue.enqueue(&key, Lane::Detach, Some(&node));
    }

    /// Retries the orphans that wait for this VolumeAttachment, which changed or is gone.
    pub(super) fn enqueue_orphans_waiting_for(&mut self, changed: &Attachment) {
        let handle = self.index.handle(changed);
        let is_of_volume = |target: &PublishTarget| {
            handle.is_none_or(|handle| may_be_same_volume(handle, &target.volume_id, &target.node_id))
        };
        for target in &self.waiting_orphans {
            let orphan = self.orphans.get(target);
            if orphan.is_some_and(|orphan| orphan.attachment.node == changed.node) && is_of_volume(target) {
                self.queue
                    .enqueue_if_pending(&Key::Target(target.clone()), &Lane::ALL);
            }
        }
    }

    pub(crate) fn orphans(&self) -> Vec<Arc<Orphan>> {
        self.orphans.values().cloned().collect()
    }

    /// Continues an orphan of an earlier term, whose publish call may not have ended.
    pub(crate) fn resume_orphan(&mut self, orphan: &Orphan) {
        self.evidence
            .published(orphan.target.clone(), PublishEnd::Unknown, self.queue.now);
        self.add_orphan(orphan.clone());
    }

    pub(super) fn orphan_finished(&mut self, orphan: &Arc<Orphan>, result: Result<(), SyncError>) {
        let key = Key::Target(orphan.target.clone());
        let finished = self.queue.finish(&key);
        self.orphan_progress.remove(&orphan.target);
        let is_newest = self.orphans.get(&orphan.target) == Some(orphan);
        match result {
            Ok(()) if is_newest => {
                self.orphans.remove(&orphan.target);
                self.waiting_orphans.remove(&orphan.target);
                self.evidence.forget(&orphan.uid());
                self.enqueue_waiting_for(&orphan.attachment, Some(&orphan.target.volume_id));
                if let Some(volume) = orphan.attachment.volume_name() {
                    self.reevaluate(&Key::Volume(volume.clone()));
                }
            }
            // Another VolumeAttachment left it meanwhile.
            Ok(()) => self.reevaluate(&key),
            Err(mut error) => {
                // No object exists whose change could end the wait.
                if error.class == Class::Refused {
                    error.class = Class::Final;
                }
                let operation = (orphan.attachment.uid.clone(), Lane::Detach);
                self.queue
                    .fail(&key, finished, operation, error, self.random.f64());
            }
        }
    }
}
