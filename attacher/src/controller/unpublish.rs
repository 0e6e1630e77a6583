//! ControllerUnpublishVolume, unless another VolumeAttachment uses the target.

use std::time::Duration;

use csi_proto::v1::ControllerUnpublishVolumeRequest;
use tokio::time::Instant;

use super::keyed_mutex::KeyedGuard;
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient, Reach};
use crate::kube_api::Cluster;
use crate::model::{Attachment, PublishTarget, SecretRef, Secrets, Uid};
use crate::plan::{
    self, Decision, DetachPlan, Evidence, Proof, TargetEvidence, TargetUsage, UnpublishResult, UsedBy,
};
use crate::report::chain;
use crate::workqueue::Key;

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
    /// machine under another id, and a driver may answer OK for an id that it no longer knows. Returns the proof that both are
    /// unpublished, and the locks of their targets.
    ///
    /// # Errors
    ///
    /// Of [`Class::Unproven`](crate::workqueue::Class::Unproven) if the driver does not know one of them, and nothing else
    /// proves that the volume is unpublished.
    pub(super) async fn unpublish_node_ids(
        &self,
        attachment: &Attachment,
        plan: &DetachPlan,
    ) -> Result<(Proof, TargetGuards), SyncError> {
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
        let mut evidence = self.evidence(&attachment.uid, plan, recorded);
        loop {
            let decision = plan::decide(&evidence);
            let failed = error
                .as_ref()
                .map(|error| SyncError::call_without(secrets.missing, error));
            match (decision, &present_target) {
                (Decision::Released(proof), _) => {
                    self.verify_unpublished(attachment, &proof)?;
                    if let Some(error) = &error {
                        tracing::warn!(%error, "the volume counts as unpublished, by lists, repeated answers or --assume-unpublished-after");
                    }
                    return Ok((proof, guards));
                }
                (Decision::UnpublishPresent, Some(present)) => {
                    tracing::info!(recorded = %plan.target.node_id, present = %present.node_id, "the node has another id now; unpublishing that, too");
                    // The next process repeats the first call.
                    self.unless_draining(std::future::ready(())).await?;
                    let used_by = UsedBy::RecordOrPresentId;
                    let unpublished = self
                        .unpublish(attachment, present, &secrets, plan.migrated, used_by)
                        .await?;
                    evidence.present = Some(unpublished.0);
                    error = unpublished.1.or(error);
                }
                (Decision::ConfirmNodeGone, _) => {
                    let exists = self
                        .unless_draining(self.cluster.has_node(&attachment.node))
                        .await?;
                    match exists {
                        Ok(false) => evidence.is_node_confirmed_gone = true,
                        Ok(true) => return Err(SyncError::outdated()),
                        Err(error) => return Err(SyncError::api("could not read CSINode", &error)),
                    }
                }
                (Decision::Unproven, _) => {
                    return Err(SyncError::unproven(plan, &self.driver.finalizer, failed.as_ref()));
                }
                (Decision::Retry | Decision::UnpublishPresent, _) => {
                    return Err(failed.unwrap_or_else(SyncError::outdated));
                }
            }
        }
    }

    /// The evidence about the targets of `plan` after the call for the recorded one.
    pub(super) fn evidence<'e>(
        &self,
        uid: &'e Uid,
        plan: &'e DetachPlan,
        recorded: TargetEvidence,
    ) -> Evidence<'e> {
        let now = Instant::now().into_std();
        let session = self.csi.session();
        Evidence {
            uid,
            plan,
            recorded,
            present: None,
            is_node_confirmed_gone: false,
            assume_after: self.assume_unpublished_after,
            session_age: session.map_or(Duration::ZERO, |opened| now.saturating_duration_since(opened)),
        }
    }

    /// The node may have registered again since the calls began: then its new id is not unpublished yet.
    pub(super) fn verify_unpublished(&self, attachment: &Attachment, proof: &Proof) -> Result<(), SyncError> {
        let present = self.state().present_node_id(attachment);
        match present.is_none_or(|id| proof.node_ids().contains(&id)) {
            true => Ok(()),
            false => Err(SyncError::outdated()),
        }
    }

    /// Unpublishes a target for `attachment`, unless another VolumeAttachment uses it. Also returns the driver's error.
    ///
    /// The caller holds the target's lock, which keeps others from publishing there between the check and the response.
    pub(super) async fn unpublish(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        secrets: &DetachSecrets<'_>,
        migrated: bool,
        used_by: UsedBy,
    ) -> Result<(TargetEvidence, Option<CallError>), SyncError> {
        let not_connected = || SyncError::call(&CallError::not_connected("the CSI driver is not connected"));
        let session = self.csi.session().ok_or_else(not_connected)?;
        let answered = |result| self.state().answered(&attachment.uid, target, session, result);
        if self.is_in_use(attachment, target, used_by)? {
            return Ok((answered(UnpublishResult::InUse), None));
        }
        let PublishTarget { volume_id, node_id } = target;
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.to_string(),
            node_id: node_id.to_string(),
            secrets: secrets.content.0.clone(),
        };
        let abandoned = Key::Target(target.clone());
        let key = match self.state().queue.is_running(&abandoned) {
            true => abandoned,
            false => Key::Attachment(attachment.name.clone()),
        };
        let Err(error) = self.call(&key, self.csi.unpublish(request, migrated)).await else {
            tracing::debug!(volume = %volume_id, %node_id, "unpublished");
            return Ok((answered(UnpublishResult::Unpublished), None));
        };
        // An answer of another session may be about another process, whose caches are cold.
        let is_certain = error.reach == Reach::Answered && self.csi.session() == Some(session);
        let result = if is_certain {
            UnpublishResult::from_code(error.code.number(), secrets.missing.is_none())
        } else {
            UnpublishResult::Failed
        };
        Ok((answered(result), Some(error)))
    }

    /// Whether another VolumeAttachment uses the target, and unpublishes it when it is deleted. Its finalizer ensures that,
    /// so an unpublish waits for one that lacks it, and for one that may use the target under another node id.
    fn is_in_use(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        used_by: UsedBy,
    ) -> Result<bool, SyncError> {
        let state = self.state();
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
            TargetUsage::MissingFinalizer => match used_by {
                UsedBy::Record => Err(SyncError::missing_finalizer(target)),
                // The volume was not published there for this VolumeAttachment, so its detach does not wait.
                UsedBy::RecordOrPresentId => Ok(true),
            },
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
