//! Unpublish targets that no detach will unpublish: those of an earlier attach, and of one whose VolumeAttachment is gone.

use std::sync::Arc;

use super::detach::is_unknown_target;
use super::keyed_mutex::KeyedGuard;
use super::state::AbandonedTarget;
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient, Reach, UnpublishRequest};
use crate::kube_api::Cluster;
use crate::model::{Attachment, PublishTarget};
use crate::plan::{self, AttachPlan, Operation, Stale, TargetUsage, UsedBy};
use crate::workqueue::Class;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Reads the VolumeAttachment from the API server: if the response to an earlier status write was lost and the watch is
    /// late, an attached volume looks like the rest of a failed attach, and must not be unpublished.
    pub(super) async fn is_still_wanted(&self, attachment: &Attachment) -> Result<bool, SyncError> {
        let newest = self.cluster.attachment(attachment).await;
        let wanted =
            self.store_response(attachment, newest, "could not read VolumeAttachment", |newest| {
                // An attached volume may need a republish, but it is in use.
                !newest.attached && plan::operation(newest, true) == Some(Operation::Attach)
            })?;
        Ok(wanted.unwrap_or(false))
    }

    /// Unpublishes what an earlier attach published elsewhere, unless another VolumeAttachment uses it. The guard must be
    /// held until the record is overwritten: until then other detaches may leave the volume to this VolumeAttachment. The
    /// present target is locked, too: it may name the same machine.
    pub(super) async fn undo(
        &self,
        attachment: &Attachment,
        stale: &Stale,
        plan: &AttachPlan,
    ) -> Result<[KeyedGuard<'_, PublishTarget>; 2], SyncError> {
        let read = self.secrets_if_present(stale.secret.as_ref());
        let (secrets, missing) = self.unless_draining(read).await?;
        let locked = async { Ok(self.target_mutexes.lock_both(&stale.target, &plan.target).await) };
        let guards = <[_; 2]>::from(self.unless_draining(locked).await?);
        if self.is_in_use(attachment, &stale.target, UsedBy::Record)? {
            return Ok(guards);
        }
        tracing::info!(
            volume = %stale.target.volume_id,
            node_id = %stale.target.node_id,
            "unpublishing the target of an earlier attach"
        );
        let request = UnpublishRequest {
            target: stale.target.clone(),
            secrets,
            migrated: plan.migrated,
        };
        match self.csi.unpublish(request).await {
            Ok(()) => Ok(guards),
            // Nothing is published for a volume or node that the driver does not know; the CSI specification leaves
            // NOT_FOUND to drivers that cannot tell. Waiting for another response would block the pod.
            Err(error) if is_unknown_target(&error, missing) => {
                tracing::info!(%error, "the driver does not know the target");
                Ok(guards)
            }
            Err(error) => Err(SyncError::call_without(missing, &error)),
        }
    }

    /// Undoes a failed publish that may have been executed, if its VolumeAttachment is gone.
    pub(super) async fn undo_if_deleted(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
        error: &CallError,
    ) {
        let is_there = || {
            let state = self.state();
            let newest = state.attachment(&attachment.name);
            newest.is_some_and(|newest| newest.uid == attachment.uid)
        };
        let may_have_been_done = match error.reach {
            Reach::Answered | Reach::Interrupted => error.class() != Class::Final,
            Reach::Unsent | Reach::NotSent => false,
        };
        if may_have_been_done && !is_there() {
            self.undo_orphan(attachment, plan).await;
        }
    }

    /// The VolumeAttachment vanished during its attach: its finalizer was removed by hand, or the API server had begun to
    /// delete it before the finalizer was stored. Nothing else would ever unpublish the target.
    ///
    /// The first attempt is made at once, under the lock of the attach. If it fails, the target becomes a work item of its
    /// own, so that it keeps neither the lock nor a place in a lane while it waits.
    pub(super) async fn undo_orphan(&self, attachment: &Arc<Attachment>, plan: &AttachPlan) {
        tracing::warn!("the VolumeAttachment vanished during its attach; unpublishing again");
        let abandoned = AbandonedTarget {
            target: plan.target.clone(),
            secret: plan.secret.clone(),
            migrated: plan.migrated,
            attachment: attachment.clone(),
        };
        if let Err(error) = self.unpublish_abandoned_locked(&abandoned).await {
            tracing::error!(
                volume = %plan.target.volume_id,
                node_id = %plan.target.node_id,
                error = error.message,
                "the volume is still published without a VolumeAttachment; unpublishing is retried"
            );
            self.state().abandon(abandoned);
        }
    }

    /// Unpublishes a target whose VolumeAttachment is gone, unless another one uses it now.
    pub(super) async fn unpublish_abandoned(&self, abandoned: &AbandonedTarget) -> Result<(), SyncError> {
        let _guard = self.lock_target(&abandoned.target).await?;
        self.unpublish_abandoned_locked(abandoned).await
    }

    async fn unpublish_abandoned_locked(&self, abandoned: &AbandonedTarget) -> Result<(), SyncError> {
        let AbandonedTarget {
            target,
            secret,
            migrated,
            ..
        } = abandoned;
        let secrets = self.secrets(secret.as_ref()).await.unwrap_or_default();
        if self.is_left_to_another(abandoned)? {
            return Ok(());
        }
        let request = UnpublishRequest {
            target: target.clone(),
            secrets,
            migrated: *migrated,
        };
        match self.csi.unpublish(request).await {
            Ok(()) => Ok(()),
            Err(error) if error.code.is_not_found() => Ok(()),
            Err(error) => Err(SyncError::call(&error)),
        }
    }

    /// Whether another VolumeAttachment with our finalizer uses the target, and unpublishes it when it is deleted. One that
    /// has not stored our finalizer may be deleted before it does, or be attached elsewhere.
    fn is_left_to_another(&self, abandoned: &AbandonedTarget) -> Result<bool, SyncError> {
        let AbandonedTarget {
            target, attachment, ..
        } = abandoned;
        let mut state = self.state();
        match state.usage_besides(attachment, target, UsedBy::Record) {
            // Its detach may rely on this very VolumeAttachment.
            TargetUsage::Unused | TargetUsage::Deleting => Ok(false),
            TargetUsage::Ambiguous if state.may_be_attached_on_node(attachment, &target.volume_id) => {
                Err(SyncError::ambiguous_node_id(target))
            }
            // The driver may refuse its publish as long as the volume is published elsewhere.
            TargetUsage::Ambiguous => Ok(false),
            TargetUsage::MissingFinalizer => {
                state.restore_finalizers(attachment, target, UsedBy::Record);
                Ok(true)
            }
            TargetUsage::InUse => Ok(true),
        }
    }
}
