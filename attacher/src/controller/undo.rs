//! Unpublishes targets that no detach will unpublish: those of an earlier attach, and of one whose VolumeAttachment is gone.

use super::keyed_mutex::KeyedGuard;
use super::state::AbandonedTarget;
use super::{Controller, SyncError};
use crate::csi::{ControllerClient, UnpublishRequest};
use crate::kube_api::{AttachmentRequest, Cluster};
use crate::model::{Attachment, PublishTarget, SecretRef};
use crate::plan::{self, AttachPlan, Operation, Stale, UnpublishResult, UsedBy};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Reads the VolumeAttachment from the API server: if the response to an earlier status write was lost and the watch is
    /// late, an attached volume looks like the rest of a failed attach, and must not be unpublished.
    pub(super) async fn is_still_wanted(&self, attachment: &Attachment) -> Result<bool, SyncError> {
        match self.request(attachment, AttachmentRequest::Get).await {
            // An attached volume may need a republish, but it is in use.
            Ok(newest) => Ok(newest.is_some_and(|newest| {
                !newest.attached && plan::operation(&newest, true) == Some(Operation::Attach)
            })),
            Err(error) => Err(SyncError::api("could not read VolumeAttachment", &error)),
        }
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
        let guards = self.lock_targets(&stale.target, &plan.target).await?;
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
        self.unpublish_or_fail(attachment, request, missing).await?;
        Ok(guards)
    }

    /// Unpublishes a target whose VolumeAttachment is deleted, unless another one uses it now.
    pub(super) async fn unpublish_abandoned(&self, abandoned: &AbandonedTarget) -> Result<(), SyncError> {
        let AbandonedTarget {
            target,
            secret,
            migrated,
            attachment,
        } = abandoned;
        let driver = self.unless_draining(self.ready_driver()).await?;
        if !driver.capabilities.publish {
            tracing::warn!(
                volume = %target.volume_id,
                node_id = %target.node_id,
                "the driver has no ControllerUnpublishVolume any more; the volume may stay published"
            );
            return Ok(());
        }
        let read = self.secrets_if_present(secret.as_ref());
        let (secrets, missing) = self.unless_draining(read).await?;
        let _guard = self.lock_target(target).await?;
        tracing::warn!(
            volume = %target.volume_id,
            node_id = %target.node_id,
            "the VolumeAttachment was deleted during its attach; unpublishing the volume"
        );
        let request = UnpublishRequest {
            target: target.clone(),
            secrets,
            migrated: *migrated,
        };
        self.unpublish_or_fail(attachment, request, missing).await
    }

    /// Unpublishes a target. Nothing is published for a volume or node that the driver does not know; the CSI specification
    /// leaves NOT_FOUND to drivers that cannot tell. Waiting for another response would block the pod.
    async fn unpublish_or_fail(
        &self,
        attachment: &Attachment,
        request: UnpublishRequest,
        missing: Option<&SecretRef>,
    ) -> Result<(), SyncError> {
        match self
            .unpublish(attachment, request, missing, UsedBy::Record)
            .await?
        {
            (UnpublishResult::Failed, Some(error)) => Err(SyncError::call_without(missing, &error)),
            (_, Some(error)) => {
                tracing::info!(%error, "the driver does not know the target");
                Ok(())
            }
            (_, None) => Ok(()),
        }
    }
}
