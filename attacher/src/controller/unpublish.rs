//! ControllerUnpublishVolume, unless another VolumeAttachment uses the target.

use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient, UnpublishRequest};
use crate::kube_api::{Cluster, Secrets};
use crate::model::{Attachment, PublishTarget, SecretRef};
use crate::plan::{TargetUsage, UnpublishResult, UsedBy};
use crate::report::chain;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Unpublishes a target for `attachment`, unless another VolumeAttachment uses it. Also returns the driver's error.
    ///
    /// The caller holds the target's lock, which keeps others from publishing there between the check and the response.
    /// INVALID_ARGUMENT after a call without the Secret that is `missing` may be about that.
    pub(super) async fn unpublish(
        &self,
        attachment: &Attachment,
        request: UnpublishRequest,
        missing: Option<&SecretRef>,
        used_by: UsedBy,
    ) -> Result<(UnpublishResult, Option<CallError>), SyncError> {
        if self.is_in_use(attachment, &request.target, used_by)? {
            return Ok((UnpublishResult::InUse, None));
        }
        let PublishTarget { volume_id, node_id } = request.target.clone();
        let Err(error) = self.csi.unpublish(request).await else {
            tracing::debug!(volume = %volume_id, %node_id, "detached");
            return Ok((UnpublishResult::Unpublished, None));
        };
        let result = if error.code.is_not_found() {
            UnpublishResult::NotFound
        } else if missing.is_none() && error.code.is_unknown_object() {
            UnpublishResult::InvalidArgument
        } else {
            UnpublishResult::Failed
        };
        Ok((result, Some(error)))
    }

    /// Whether another VolumeAttachment uses the target, and unpublishes it when it is deleted. Its finalizer ensures that,
    /// so an unpublish waits for one that lacks it, and for one that may use the target under another node id.
    fn is_in_use(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        used_by: UsedBy,
    ) -> Result<bool, SyncError> {
        let mut state = self.state();
        let PublishTarget { volume_id, node_id } = target;
        match state.usage_besides(attachment, target, used_by) {
            TargetUsage::Unused | TargetUsage::Deleting => Ok(false),
            // Its detach ended before. If the volume is published there all the same, reconcile finds it.
            TargetUsage::Ambiguous if attachment.deleting && !attachment.finalizer => Ok(true),
            // The attach of the other one may need this very unpublish, and publishes again after it.
            TargetUsage::Ambiguous
                if !attachment.deleting && !state.may_be_attached_on_node(attachment, volume_id) =>
            {
                Ok(false)
            }
            TargetUsage::Ambiguous => Err(SyncError::ambiguous_node_id(target)),
            TargetUsage::MissingFinalizer => {
                state.restore_finalizers(attachment, target, used_by);
                match used_by {
                    UsedBy::Record => Err(SyncError::missing_finalizer(target)),
                    // The volume was not published there for this VolumeAttachment, so it does not wait.
                    UsedBy::RecordOrPresentId => Ok(true),
                }
            }
            TargetUsage::InUse => {
                tracing::info!(volume = %volume_id, %node_id, "another VolumeAttachment uses the volume there; not unpublishing");
                Ok(true)
            }
        }
    }

    /// Reads a Secret that a detach can do without: one that is gone must not block it for ever, and a driver that needs it
    /// says so. A forbidden one may be gone as well: its namespace's deletion takes the RoleBinding along that lets us
    /// read it.
    pub(super) async fn secrets_if_present<'s>(
        &self,
        reference: Option<&'s SecretRef>,
    ) -> Result<(Secrets, Option<&'s SecretRef>), SyncError> {
        let Some(secret) = reference else {
            return Ok((Secrets::default(), None));
        };
        match self.cluster.secret(secret).await {
            Ok(secrets) => Ok((secrets, None)),
            Err(error) if error.is_gone() || error.is_forbidden() => {
                tracing::warn!(%secret, error = chain(&error), "cannot read the Secret for the detach; calling the driver without it");
                Ok((Secrets::default(), reference))
            }
            Err(error) => Err(SyncError::secret(secret, &error)),
        }
    }
}
