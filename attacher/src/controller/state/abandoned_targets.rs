//! Publish targets whose VolumeAttachment vanished during its attach: without an attachment nothing else would ever
//! unpublish them.

use std::sync::Arc;
use std::time::Instant;

use super::{AbandonedTarget, ControllerState, Outcome};
use crate::workqueue::{Class, Failed, Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Has the target unpublished, and goes on until that works or another attachment is answerable for it.
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
        outcome: Outcome,
        now: Instant,
    ) {
        let key = Key::Target(abandoned.target.clone());
        let finished = self.queue.finish(&key);
        let is_newest = self.abandoned.get(&abandoned.target) == Some(abandoned);
        match outcome {
            Outcome::Done if is_newest => {
                self.abandoned.remove(&abandoned.target);
            }
            // Another attachment abandoned it meanwhile.
            Outcome::Done => self.consider(&key),
            Outcome::Failed {
                class,
                code,
                message,
                retry_after,
                ..
            } => {
                // No object changes that could end the wait.
                let class = if class == Class::Refused {
                    Class::Final
                } else {
                    class
                };
                let failed = Failed {
                    uid: abandoned.attachment.uid.clone(),
                    lane: Lane::Detach,
                    class,
                    code,
                    message,
                    retry_after,
                };
                self.queue.fail(&key, finished, failed, now, self.random.f64());
            }
        }
    }
}
