//! Unpublish what nobody else would: the rest of an earlier attempt, and of an attach that lost its attachment.

use std::sync::Arc;

use super::detach::{failed_without, knows_nothing};
use super::keyed_mutex::KeyedGuard;
use super::sync_error::Failure;
use super::{Controller, called};
use crate::controller::state::{AbandonedTarget, TargetUsage, UsedBy};
use crate::csi::{CallError, ControllerClient, Reach, UnpublishRequest};
use crate::kube_api::Cluster;
use crate::model::{Attachment, PublishTarget};
use crate::plan::{self, AttachPlan, Operation, Stale};
use crate::workqueue::Class;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Looks at the attachment afresh. What looks like the rest of a failed attempt may have succeeded,
    /// if the answer to its last write was lost and the watch is late: that must not be unpublished.
    pub(super) async fn is_still_wanted(&self, attachment: &Attachment) -> Result<bool, Failure> {
        let newest = self.cluster.attachment(attachment).await;
        let wanted = self.taken_in(attachment, newest, "could not read VolumeAttachment", |newest| {
            // Who is attached may be wanted again, but what he has is in use.
            !newest.attached && plan::operation(newest, true) == Some(Operation::Attach)
        })?;
        Ok(wanted.unwrap_or(false))
    }

    /// Unpublishes what an earlier attempt published elsewhere, unless somebody else needs it there. The turn
    /// there ends when the record is overwritten: until then others may leave the volume to this attachment.
    pub(super) async fn undo(
        &self,
        attachment: &Attachment,
        stale: &Stale,
        migrated: bool,
    ) -> Result<KeyedGuard<'_, PublishTarget>, Failure> {
        let read = self.secrets_if_there(stale.secret.as_ref());
        let (secrets, missing) = self.unless_draining(read).await?;
        let turn = self.lock_target(&stale.target).await?;
        if self.is_needed_at(attachment, &stale.target, UsedBy::Record)? {
            // The id is another node's by now, and the volume is in use there.
            return Ok(turn);
        }
        tracing::info!(
            volume = %stale.target.volume_id,
            node_id = %stale.target.node_id,
            "unpublishing from where it was published before"
        );
        let request = UnpublishRequest {
            target: stale.target.clone(),
            secrets,
            migrated,
        };
        self.check_draining()?;
        match self.csi.unpublish(request).await {
            Ok(()) => Ok(turn),
            // A volume or node that the driver does not know holds nothing; the CSI specification leaves
            // NOT_FOUND to drivers that cannot tell. Waiting for another answer would block the pod.
            Err(error) if knows_nothing(&error, missing) => {
                tracing::info!(%error, "the driver knows nothing of it");
                Ok(turn)
            }
            Err(error) => Err(failed_without(missing, &error)),
        }
    }

    /// What a call that failed did all the same, perhaps, is undone if nobody is left to do so one day.
    pub(super) async fn undo_if_departed(
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
            Box::pin(self.undo_orphan(attachment, plan)).await;
        }
    }

    /// The attachment vanished during its attach: its finalizer was removed by hand, or the API server had begun to delete
    /// it before the finalizer was stored. Nothing else would ever unpublish the target.
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
        if let Err(error) = self.unpublish_abandoned_now(&abandoned).await {
            tracing::error!(
                volume = %plan.target.volume_id,
                node_id = %plan.target.node_id,
                error = error.message,
                "the volume is still published without a VolumeAttachment; unpublishing is retried"
            );
            self.state().abandon(abandoned);
        }
    }

    /// Unpublishes a target whose attachment is gone, unless another attachment is answerable for it by now.
    pub(super) async fn unpublish_abandoned(&self, abandoned: &AbandonedTarget) -> Result<(), Failure> {
        let _guard = self.lock_target(&abandoned.target).await?;
        self.check_draining()?;
        self.unpublish_abandoned_now(abandoned).await
    }

    async fn unpublish_abandoned_now(&self, abandoned: &AbandonedTarget) -> Result<(), Failure> {
        let AbandonedTarget {
            target,
            secret,
            migrated,
            ..
        } = abandoned;
        let secrets = self.secrets(secret.as_ref()).await.unwrap_or_default();
        if self.is_left_to_another(abandoned) {
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
            Err(error) => Err(called(&error)),
        }
    }

    /// Whether another attachment with our finalizer holds the target, and unpublishes it when it is deleted. One that has
    /// not stored our finalizer may be deleted before it does, or be attached elsewhere.
    fn is_left_to_another(&self, abandoned: &AbandonedTarget) -> bool {
        let AbandonedTarget {
            target, attachment, ..
        } = abandoned;
        let mut state = self.state();
        match state.usage_besides(attachment, target, UsedBy::Record) {
            // Its detach may rely on this very attachment.
            TargetUsage::Unused | TargetUsage::Deleting => false,
            TargetUsage::MissingFinalizer => {
                state.restore_finalizers(attachment, target, UsedBy::Record);
                true
            }
            TargetUsage::InUse => true,
        }
    }
}
