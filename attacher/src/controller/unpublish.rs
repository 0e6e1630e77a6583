//! ControllerUnpublishVolume, unless another VolumeAttachment uses the target.

use std::sync::Arc;

use csi_proto::v1::ControllerUnpublishVolumeRequest;

use super::keyed_mutex::KeyedGuard;
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient};
use crate::kube_api::Cluster;
use crate::model::{Attachment, PublishTarget, SecretRef, Secrets};
use crate::plan::{self, DetachOutcome, DetachPlan, TargetUsage, UnpublishResult, UsedBy};
use crate::report::chain;

/// The Secret of an unpublish.
#[derive(Default)]
pub(super) struct DetachSecrets<'s> {
    pub(super) content: Secrets,
    /// Its reference, if it could not be read.
    pub(super) missing: Option<&'s SecretRef>,
}

/// The locks of one target or of two.
pub(super) type TargetGuards = [Option<KeyedGuard>; 2];

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Unpublishes the recorded node id of `plan`, and the node's present id where it differs: the node may be the same
    /// machine under another id, and a driver may answer OK for an id that it no longer knows. Returns these node ids, and
    /// the locks of their targets.
    pub(super) async fn unpublish_node_ids(
        &self,
        attachment: &Attachment,
        plan: &DetachPlan,
    ) -> Result<(Vec<Arc<str>>, TargetGuards), SyncError> {
        let secrets = self.secrets_if_present(plan.secret.as_ref());
        let secrets = self.unless_draining(secrets).await??;
        // Both at once: a publish under the present id may be of the same machine as the recorded one.
        let present_target = plan.present_target();
        let mutexes = &self.target_mutexes;
        let lock = async {
            match &present_target {
                Some(present) => mutexes.lock_both(&plan.target, present).await.map(Some),
                None => [Some(mutexes.lock(&plan.target).await), None],
            }
        };
        let guards = self.unless_draining(lock).await?;
        let (recorded, mut error) = self
            .unpublish(attachment, &plan.target, &secrets, plan.migrated, UsedBy::Record)
            .await?;
        let mut outcome = plan::detach_outcome(recorded, &plan.present, None);
        let mut unpublished = vec![plan.target.node_id.clone()];
        if let (DetachOutcome::UnpublishPresent, Some(present)) = (outcome, present_target) {
            tracing::info!(recorded = %plan.target.node_id, present = %present.node_id, "the node has another id now; unpublishing that, too");
            // The next process repeats the first call.
            self.unless_draining(std::future::ready(())).await?;
            unpublished.push(present.node_id.clone());
            let (present, present_error) = self
                .unpublish(
                    attachment,
                    &present,
                    &secrets,
                    plan.migrated,
                    UsedBy::RecordOrPresentId,
                )
                .await?;
            outcome = plan::detach_outcome(recorded, &plan.present, Some(present));
            error = present_error.or(error);
        }
        let error = error.map(|error| SyncError::call_without(secrets.missing, &error));
        match (outcome, error) {
            (DetachOutcome::Detached, _) => {
                self.verify_unpublished(attachment, &unpublished)?;
                Ok((unpublished, guards))
            }
            (DetachOutcome::Unresolved, Some(error)) => Err(SyncError::unresolved(plan, &error)),
            (_, Some(error)) => Err(error),
            (_, None) => Err(SyncError::outdated()),
        }
    }

    /// The node may have registered again since the calls began: then its new id is not unpublished yet.
    pub(super) fn verify_unpublished(
        &self,
        attachment: &Attachment,
        unpublished: &[Arc<str>],
    ) -> Result<(), SyncError> {
        let present = self.state().present_node_id(attachment);
        match unpublished.is_empty() || present.is_none_or(|id| unpublished.contains(&id)) {
            true => Ok(()),
            false => Err(SyncError::outdated()),
        }
    }

    /// Unpublishes a target for `attachment`, unless another VolumeAttachment uses it. Also returns the driver's error.
    ///
    /// The caller holds the target's lock, which keeps others from publishing there between the check and the response.
    /// INVALID_ARGUMENT after a call without the Secret may be about that.
    pub(super) async fn unpublish(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        secrets: &DetachSecrets<'_>,
        migrated: bool,
        used_by: UsedBy,
    ) -> Result<(UnpublishResult, Option<CallError>), SyncError> {
        if self.is_in_use(attachment, target, used_by)? {
            return Ok((UnpublishResult::InUse, None));
        }
        let PublishTarget { volume_id, node_id } = target;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.to_string(),
            node_id: node_id.to_string(),
            secrets: secrets.content.0.clone(),
        };
        let Err(error) = self.csi.unpublish(request, migrated).await else {
            tracing::debug!(volume = %volume_id, %node_id, "detached");
            return Ok((UnpublishResult::Unpublished, None));
        };
        let result = if error.code.is_not_found() {
            UnpublishResult::NotFound
        } else if secrets.missing.is_none() && error.code.is_unknown_object() {
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
            // Its detach ended before. If the volume is published there nevertheless, reconcile finds it.
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
                    // The volume was not published there for this VolumeAttachment, so its detach does not wait.
                    UsedBy::RecordOrPresentId => Ok(true),
                }
            }
            TargetUsage::InUse => {
                tracing::info!(volume = %volume_id, %node_id, "another VolumeAttachment uses the volume there; not unpublishing");
                Ok(true)
            }
        }
    }

    /// Reads an optional Secret of a detach: a deleted Secret must not block the detach permanently, and a driver that
    /// needs it returns an error. A forbidden Secret may be deleted, too: the deletion of its namespace also deletes the
    /// RoleBinding that allows us to read it.
    pub(super) async fn secrets_if_present<'s>(
        &self,
        reference: Option<&'s SecretRef>,
    ) -> Result<DetachSecrets<'s>, SyncError> {
        let Some(secret) = reference else {
            return Ok(DetachSecrets::default());
        };
        match self.cluster.secret(secret).await {
            Ok(content) => Ok(DetachSecrets {
                content,
                missing: None,
            }),
            Err(error) if error.is_gone() || error.is_forbidden() => {
                tracing::warn!(%secret, error = chain(&error), "cannot read the Secret for the detach; calling the driver without it");
                Ok(DetachSecrets {
                    missing: reference,
                    ..DetachSecrets::default()
                })
            }
            Err(error) => Err(SyncError::secret(secret, &error)),
        }
    }
}
