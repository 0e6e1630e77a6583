//! Unpublishes targets that no detach will unpublish: those of an earlier attach, and of one whose VolumeAttachment is gone.

use super::detach::is_unknown_target;
use super::keyed_mutex::KeyedGuard;
use super::state::AbandonedTarget;
use super::{Controller, SyncError};
use crate::csi::{ControllerClient, UnpublishRequest};
use crate::kube_api::Cluster;
use crate::model::{Attachment, PublishTarget};
use crate::plan::{self, AttachPlan, Operation, Stale, TargetUsage, UsedBy};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Reads the VolumeAttachment from the API server: if the response to an earlier status write was lost and the watch is
    /// late, an attached volume looks like the rest of a failed attach, and must not be unpublished.
    pub(super) async fn is_still_wanted(&self, attachment: &Attachment) -> Result<bool, SyncError> {
        let newest = self.cluster.attachment(attachment).await;
        let wanted = self.store_response(attachment, newest, |newest| {
            // An attached volume may need a republish, but it is in use.
            !newest.attached && plan::operation(newest, true) == Some(Operation::Attach)
        });
        match wanted {
            Ok(wanted) => Ok(wanted.unwrap_or(false)),
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

    /// Unpublishes a target whose VolumeAttachment is deleted, unless another one uses it now.
    pub(super) async fn unpublish_abandoned(&self, abandoned: &AbandonedTarget) -> Result<(), SyncError> {
        let AbandonedTarget {
            target,
            secret,
            migrated,
            ..
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
        if self.is_left_to_another(abandoned)? {
            return Ok(());
        }
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
        match self.csi.unpublish(request).await {
            Ok(()) => Ok(()),
            Err(error) if is_unknown_target(&error, missing) => Ok(()),
            Err(error) => Err(SyncError::call_without(missing, &error)),
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
