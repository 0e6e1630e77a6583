//! Detach: unpublish, then remove the finalizer.

use std::sync::Arc;

use super::keyed_mutex::KeyedGuard;
use super::state::PendingStatusWrite;
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient, UnpublishRequest};
use crate::kube_api::{Cluster, Error, Secrets};
use crate::model::{Attachment, Driver, PublishTarget, Recorded, SecretRef};
use crate::plan::{
    self, AttachInputs, DetachOutcome, DetachPlan, Operation, TargetUsage, UnpublishResult, UsedBy,
};
use crate::report::chain;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Detaches the volume, or completes what an earlier sync began. A `repair` is of a VolumeAttachment whose finalizer
    /// was removed before.
    pub(super) async fn detach(
        &self,
        attachment: &Arc<Attachment>,
        pending: Option<&PendingStatusWrite>,
        repair: bool,
    ) -> Result<(), SyncError> {
        if pending != Some(&PendingStatusWrite::Unpublished) {
            // Without our finalizer the object may have been replaced by a successor that is attached.
            if repair && !self.unless_draining(self.exists(attachment)).await? {
                return Ok(());
            }
            let (inputs, driver) = self.unless_draining(self.detach_inputs(attachment)).await?;
            self.unpublish_everywhere(&inputs, &driver).await?;
            self.state().unpublished(attachment);
        }
        self.mark_detached_and_release(attachment).await?;
        self.announce_recovery(Operation::Detach, attachment);
        Ok(())
    }

    async fn exists(&self, attachment: &Attachment) -> Result<bool, SyncError> {
        let newest = self.cluster.attachment(attachment).await;
        match self.store_response(attachment, newest, |_| ()) {
            Ok(read) => Ok(read.is_some()),
            Err(error) => Err(SyncError::api("could not read VolumeAttachment", &error)),
        }
    }

    /// Reads the inputs once the driver is connected, which may take long.
    async fn detach_inputs(&self, attachment: &Arc<Attachment>) -> Result<(AttachInputs, Driver), SyncError> {
        let driver = self.ready_driver().await?;
        let mut inputs = self.state().inputs_of(attachment);
        // With a recorded handle the volume is not needed. It may be long gone.
        if attachment.recorded.handle.is_none() {
            let missing = self.missing_volume(&inputs).await?;
            inputs.volume = inputs.volume.or(missing);
        }
        Ok((inputs, driver))
    }

    /// Unpublishes the volume from every node id under which it may be attached.
    async fn unpublish_everywhere(&self, inputs: &AttachInputs, driver: &Driver) -> Result<(), SyncError> {
        let attachment = &inputs.attachment;
        let Recorded { handle, node_id, .. } = &attachment.recorded;
        let may_be_published = attachment.finalizer || node_id.is_some();
        if !driver.capabilities.publish {
            if may_be_published {
                tracing::warn!(
                    volume = handle.as_deref(),
                    node_id = node_id.as_deref(),
                    "the driver has no ControllerUnpublishVolume any more; detaching without a call"
                );
            }
            return Ok(());
        }
        match plan::detach(inputs, driver) {
            Ok(plan) => self.unpublish_recorded_and_present(attachment, &plan).await,
            Err(refusal) if may_be_published => Err(SyncError::refused(&refusal)),
            Err(refusal) => {
                tracing::info!(%refusal, "the volume was never published");
                Ok(())
            }
        }
    }

    /// Unpublishes the recorded node id, and the node's present id where it differs: the node may be the same machine
    /// under another id, and a driver may answer OK for an id that it no longer knows.
    async fn unpublish_recorded_and_present(
        &self,
        attachment: &Attachment,
        plan: &DetachPlan,
    ) -> Result<(), SyncError> {
        let secrets = self.secrets_if_present(plan.secret.as_ref());
        let (secrets, missing) = self.unless_draining(secrets).await?;
        let request = |target| UnpublishRequest {
            target,
            secrets: secrets.clone(),
            migrated: plan.migrated,
        };
        let failed = |error| SyncError::call_without(missing, &error);
        // Both at once: a publish under the present id may be of the same machine as the recorded one.
        let _guards = self.unless_draining(self.lock_targets(plan)).await?;
        let recorded = request(plan.target.clone());
        let recorded = self
            .unpublish_unless_in_use(attachment, recorded, UsedBy::Record)
            .await?;
        let (recorded, mut error) = summarized(recorded, missing);
        let mut outcome = plan::detach_outcome(recorded, &plan.present, None);
        let mut unpublished = vec![plan.target.node_id.clone()];
        if let (DetachOutcome::UnpublishPresent, Some(present)) = (outcome, plan.present_target()) {
            tracing::info!(recorded = %plan.target.node_id, present = %present.node_id, "the node has another id now; unpublishing that, too");
            // The next process repeats the first call.
            self.unless_draining(std::future::ready(Ok(()))).await?;
            unpublished.push(present.node_id.clone());
            let result = self
                .unpublish_unless_in_use(attachment, request(present), UsedBy::RecordOrPresentId)
                .await?;
            let (present, present_error) = summarized(result, missing);
            outcome = plan::detach_outcome(recorded, &plan.present, Some(present));
            error = present_error.or(error);
        }
        match (outcome, error) {
            (DetachOutcome::Detached, _) => self.verify_unpublished(attachment, &unpublished),
            (DetachOutcome::Unresolved, Some(error)) => Err(SyncError::unresolved(plan, &failed(error))),
            (_, Some(error)) => Err(failed(error)),
            (_, None) => Err(SyncError::outdated()),
        }
    }

    async fn lock_targets(
        &self,
        plan: &DetachPlan,
    ) -> Result<[Option<KeyedGuard<'_, PublishTarget>>; 2], SyncError> {
        Ok(match plan.present_target() {
            Some(present) => {
                let (recorded, present) = self.target_mutexes.lock_both(&plan.target, &present).await;
                [Some(recorded), Some(present)]
            }
            None => [Some(self.target_mutexes.lock(&plan.target).await), None],
        })
    }

    /// The node may have registered again during the calls: then its new id is not unpublished yet.
    fn verify_unpublished(&self, attachment: &Attachment, unpublished: &[Arc<str>]) -> Result<(), SyncError> {
        let inputs = self.state().inputs(attachment);
        let present = inputs.and_then(|inputs| inputs.node?.id.clone());
        match present.is_none_or(|id| unpublished.contains(&id)) {
            true => Ok(()),
            false => Err(SyncError::outdated()),
        }
    }

    /// Whether another VolumeAttachment uses the target, and unpublishes it when it is deleted. Its finalizer ensures that,
    /// so an unpublish waits for one that lacks it, and for one that may use the target under another node id.
    pub(super) fn is_in_use(
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

    /// Calls the driver, unless another VolumeAttachment uses the target (`None`). The target's lock keeps others from
    /// publishing there between this check and the response.
    async fn unpublish_unless_in_use(
        &self,
        attachment: &Attachment,
        request: UnpublishRequest,
        used_by: UsedBy,
    ) -> Result<Option<Result<(), CallError>>, SyncError> {
        if self.is_in_use(attachment, &request.target, used_by)? {
            return Ok(None);
        }
        let PublishTarget { volume_id, node_id } = request.target.clone();
        let result = self.csi.unpublish(request).await;
        if result.is_ok() {
            tracing::debug!(volume = %volume_id, %node_id, "detached");
        }
        Ok(Some(result))
    }

    /// Reads a Secret that a detach can do without: one that is gone must not block it for ever, and a driver that needs it
    /// says so. A forbidden one may be gone as well: its namespace's deletion takes the RoleBinding along that lets us
    /// read it.
    pub(super) async fn secrets_if_present<'s>(
        &self,
        reference: Option<&'s SecretRef>,
    ) -> Result<(Secrets, Option<&'s SecretRef>), SyncError> {
        match self.secrets(reference).await {
            Ok(secrets) => Ok((secrets, None)),
            Err((secret, error)) if error.is_gone() || error.is_forbidden() => {
                tracing::warn!(%secret, error = chain(&error), "cannot read the Secret for the detach; calling the driver without it");
                Ok((Secrets::default(), reference))
            }
            Err((secret, error)) => Err(SyncError::secret(&secret, &error)),
        }
    }

    /// Writes the status if other finalizers keep the object, then removes our finalizer. In this order a crash in between
    /// repeats the detach; in the other the status would stay wrong.
    async fn mark_detached_and_release(&self, attachment: &Attachment) -> Result<(), SyncError> {
        let outlives = attachment.foreign_finalizers || !attachment.finalizer;
        if outlives && attachment.says_attached() {
            self.mark_detached(attachment).await?;
        }
        if !attachment.finalizer {
            return Ok(());
        }
        let left = self.cluster.remove_finalizer(attachment).await;
        let left = self
            .store_response(attachment, left, Attachment::clone)
            .map_err(|error| self.keep_unpublished(attachment, &error))?;
        self.observe_latency(Operation::Detach, attachment);
        match left {
            // Another client added a finalizer that the store did not have, so the status is wrong now.
            Some(left) if left.says_attached() => self.mark_detached(&left).await,
            Some(_) | None => Ok(()),
        }
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<(), SyncError> {
        let marked = self.cluster.mark_detached(attachment).await;
        self.store_response(attachment, marked, |_| ())
            .map_err(|error| self.keep_unpublished(attachment, &error))?;
        Ok(())
    }

    /// The volume is unpublished, and a write failed that says so: the next sync repeats the write alone.
    fn keep_unpublished(&self, attachment: &Attachment, error: &Error) -> SyncError {
        self.state()
            .keep_pending(attachment, PendingStatusWrite::Unpublished);
        SyncError::api("could not mark as detached", error)
    }
}

/// The result as the plan's table has it. After a call without the Secret that is `missing`, INVALID_ARGUMENT may be
/// about that.
fn summarized(
    result: Option<Result<(), CallError>>,
    missing: Option<&SecretRef>,
) -> (UnpublishResult, Option<CallError>) {
    match result {
        None => (UnpublishResult::InUse, None),
        Some(Ok(())) => (UnpublishResult::Unpublished, None),
        Some(Err(error)) if error.code.is_not_found() => (UnpublishResult::NotFound, Some(error)),
        Some(Err(error)) if is_unknown_target(&error, missing) => {
            (UnpublishResult::InvalidArgument, Some(error))
        }
        Some(Err(error)) => (UnpublishResult::Failed, Some(error)),
    }
}

/// Whether an unpublish failed because the driver does not know the volume or the node, so that nothing is published. After
/// a call without the Secret that is `missing`, INVALID_ARGUMENT may be about that.
pub(super) fn is_unknown_target(error: &CallError, missing: Option<&SecretRef>) -> bool {
    error.code.is_not_found() || missing.is_none() && error.code.is_unknown_object()
}
