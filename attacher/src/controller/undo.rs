//! Unpublishes targets that no detach will unpublish: those of an earlier attach, and of one whose VolumeAttachment is gone.

use super::state::AbandonedTarget;
use super::unpublish::TargetGuards;
use super::{Controller, SyncError};
use crate::csi::ControllerClient;
use crate::kube_api::Cluster;
use crate::model::Attachment;
use crate::plan::{self, AttachPlan, DetachPlan, Operation, PresentNodeId, UnpublishResult, UsedBy};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Reads the VolumeAttachment from the API server: if the response to an earlier status write was lost and the watch is
    /// late, an attached volume looks like the remainder of a failed attach, and must not be unpublished.
    pub(super) async fn is_still_wanted(&self, attachment: &Attachment) -> Result<bool, SyncError> {
        let newest = self.read(attachment).await?;
        // An attached volume may need a republish, but it is in use.
        Ok(newest.is_some_and(|newest| {
            !newest.attached && plan::operation(&newest, true) == Some(Operation::Attach)
        }))
    }

    /// Unpublishes what an earlier attach published elsewhere, unless another VolumeAttachment uses it. The guards must be
    /// held until the record is overwritten: until then other detaches may leave the volume to this VolumeAttachment.
    pub(super) async fn undo(
        &self,
        attachment: &Attachment,
        stale: &DetachPlan,
        plan: &AttachPlan,
    ) -> Result<TargetGuards, SyncError> {
        let DetachPlan { target, migrated, .. } = stale;
        tracing::info!(volume = %target.volume_id, node_id = %target.node_id, "unpublishing the target of an earlier attach");
        if target.volume_id != plan.target.volume_id {
            return Ok(self.unpublish_node_ids(attachment, stale).await?.1);
        }
        let read = self.secrets_if_present(stale.secret.as_ref());
        let secrets = self.unless_draining(read).await??;
        // The present target, which is published next, may name the same machine.
        let both = self.target_mutexes.lock_both(target, &plan.target);
        let guards = self.unless_draining(both).await?;
        let unpublished = self
            .unpublish(attachment, target, &secrets, *migrated, UsedBy::Record)
            .await?;
        match unpublished {
            (UnpublishResult::Failed, Some(error)) => Err(SyncError::call_without(secrets.missing, &error)),
            // The driver may not know the former node id. Waiting for another response would block the pod.
            (_, Some(error)) => {
                tracing::info!(%error, "the driver does not know the target");
                Ok(guards.map(Some))
            }
            (_, None) => Ok(guards.map(Some)),
        }
    }

    /// Unpublishes a target whose VolumeAttachment is deleted, unless another one uses it now.
    pub(super) async fn unpublish_abandoned(&self, abandoned: &AbandonedTarget) -> Result<(), SyncError> {
        let AbandonedTarget {
            target,
            secret,
            migrated,
            attachment,
        } = abandoned;
        let driver = self.unless_draining(self.ready_driver()).await??;
        if !driver.capabilities.publish {
            tracing::warn!(
                volume = %target.volume_id,
                node_id = %target.node_id,
                "the driver has no ControllerUnpublishVolume any more; the volume may stay published"
            );
            return Ok(());
        }
        tracing::warn!(
            volume = %target.volume_id,
            node_id = %target.node_id,
            "the VolumeAttachment was deleted during its attach; unpublishing the volume"
        );
        let present = self.state().present_node_id(attachment);
        let detach = DetachPlan {
            target: target.clone(),
            present: PresentNodeId::other_than(&target.node_id, present.as_ref()),
            secret: secret.clone(),
            migrated: *migrated,
        };
        self.unpublish_node_ids(attachment, &detach).await?;
        Ok(())
    }
}
