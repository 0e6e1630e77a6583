//! Unpublishes targets that no detach will unpublish: those of an earlier attach, and of one whose VolumeAttachment is gone.

use super::state::AbandonedTarget;
use super::unpublish::TargetGuards;
use super::{Controller, SyncError};
use crate::csi::ControllerClient;
use crate::kube_api::Cluster;
use crate::model::{Attachment, Uid};
use crate::plan::{self, AttachPlan, DetachPlan, NodeState, Operation, UnpublishResult, UsedBy};

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
    ///
    /// If the driver does not know the target, it becomes an orphan: waiting for a proof would block the pod, and the driver
    /// refuses a second node where it matters. The orphan exists before the record is overwritten, whose response may be lost.
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
        let (unpublished, error) = self
            .unpublish(attachment, target, &secrets, *migrated, UsedBy::Record)
            .await?;
        match (unpublished.result, error) {
            (UnpublishResult::NotFound | UnpublishResult::InvalidArgument, _) => {
                tracing::warn!(volume = %target.volume_id, node_id = %target.node_id, "the driver does not know the target of an earlier attach; publishing, and retrying its unpublish");
                self.state().abandon(AbandonedTarget {
                    target: target.clone(),
                    secret: stale.secret.clone(),
                    migrated: *migrated,
                    attachment: attachment.clone().into(),
                });
            }
            (_, Some(error)) => return Err(SyncError::call_without(secrets.missing, &error)),
            (_, None) => {}
        }
        Ok(guards.map(Some))
    }

    /// Unpublishes a target that no VolumeAttachment records any more, unless another one uses it now. The one that published it
    /// counts as another: it may use the volume on the same machine under another id, or have been revived.
    pub(super) async fn unpublish_abandoned(&self, abandoned: &AbandonedTarget) -> Result<(), SyncError> {
        let AbandonedTarget {
            target,
            secret,
            migrated,
            attachment,
        } = abandoned;
        let driver = self.unless_draining(self.ready_driver()).await??;
        tracing::warn!(
            volume = %target.volume_id,
            node_id = %target.node_id,
            "no VolumeAttachment records the target of an attach any more; unpublishing the volume"
        );
        let former = Attachment {
            uid: Uid::default(),
            ..(**attachment).clone()
        };
        let detach = DetachPlan {
            target: target.clone(),
            node: NodeState::of(
                self.state().index.nodes.get(&attachment.node).map(|node| &**node),
                &target.node_id,
            ),
            secret: secret.clone(),
            migrated: *migrated,
        };
        if driver.capabilities.publish {
            self.unpublish_node_ids(&former, &detach).await?;
        } else {
            self.prove_without_calls(&former.uid, &detach)?;
        }
        Ok(())
    }
}
