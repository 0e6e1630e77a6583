//! Publish targets whose VolumeAttachment vanished during its attach, so that no detach unpublishes them.

use std::sync::Arc;
use std::time::Instant;

use super::{AbandonedTarget, ControllerState, SyncError};
use crate::workqueue::{Class, Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Enqueues the target until it is unpublished or another VolumeAttachment uses it.
    pub fn abandon(&mut self, abandoned: AbandonedTarget) {
        let key = Key::Target(abandoned.target.clone());
        self.abandoned
            .insert(abandoned.target.clone(), Arc::new(abandoned));
        self.queue.enqueue(&key, Lane::Detach);
    }

    /// Whether any target is still to be unpublished.
    pub fn has_abandoned_targets(&self) -> bool {
        !self.abandoned.is_empty()
    }

    pub(super) fn target_finished(
        &mut self,
        abandoned: &Arc<AbandonedTarget>,
        result: Result<(), SyncError>,
        now: Instant,
    ) {
        let key = Key::Target(abandoned.target.clone());
        let finished = self.queue.finish(&key);
        let is_newest = self.abandoned.get(&abandoned.target) == Some(abandoned);
        match result {
            Ok(()) if is_newest => {
                self.abandoned.remove(&abandoned.target);
            }
            // Another VolumeAttachment abandoned it meanwhile.
            Ok(()) => self.reevaluate(&key),
            Err(mut error) => {
                // No object exists whose change could end the wait.
                if error.class == Class::Refused {
                    error.class = Class::Final;
                }
                let failed = error.into_failed(abandoned.attachment.uid.clone(), Lane::Detach);
                self.queue.fail(&key, finished, failed, now, self.random.f64());
            }
        }
    }
}
