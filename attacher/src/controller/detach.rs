//! Detach: unpublish, then remove the finalizer.

use std::sync::Arc;

use super::state::PendingStatusWrite;
use super::{Controller, SyncError};
use crate::csi::{ControllerClient, UnpublishRequest};
use crate::kube_api::{AttachmentRequest, Cluster, Error};
use crate::model::{Attachment, Driver, Recorded};
use crate::plan::{self, AttachInputs, DetachOutcome, DetachPlan, Operation, UsedBy};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Detaches the volume, or completes what an earlier sync began.
    pub(super) async fn detach(&self, attachment: &Arc<Attachment>) -> Result<(), SyncError> {
        let pending = self.state().state_of(&attachment.uid).pending.clone();
        if pending != Some(PendingStatusWrite::Unpublished) {
            // Without our finalizer the object may have been replaced by a successor that is attached.
            if !attachment.finalizer && !self.unless_draining(self.exists(attachment)).await? {
                return Ok(());
            }
            let (inputs, driver) = self.unless_draining(self.detach_inputs(attachment)).await?;
            self.unpublish_everywhere(&inputs, &driver).await?;
            self.state().state_of(&attachment.uid).unwritten_publish = None;
        }
        self.mark_detached_and_release(attachment).await?;
        self.announce_recovery(Operation::Detach, attachment);
        Ok(())
    }

    async fn exists(&self, attachment: &Attachment) -> Result<bool, SyncError> {
        match self.request(attachment, AttachmentRequest::Get).await {
            Ok(newest) => Ok(newest.is_some()),
            Err(error) => Err(SyncError::api("could not read VolumeAttachment", &error)),
        }
    }

    /// Reads the inputs once the driver is connected, which may take long.
    async fn detach_inputs(&self, attachment: &Arc<Attachment>) -> Result<(AttachInputs, Driver), SyncError> {
        let driver = self.ready_driver().await?;
        let mut inputs = self.state().inputs(attachment);
        // With a recorded handle the volume is not needed. It may be long gone.
        if attachment.recorded.handle.is_none()
            && inputs.volume.is_none()
            && let Some(name) = attachment.volume_name()
        {
            inputs.volume = self.missing_volume(name).await?;
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
        // Both at once: a publish under the present id may be of the same machine as the recorded one.
        let present_target = plan.present_target();
        let _guards = match &present_target {
            Some(present) => self.lock_targets(&plan.target, present).await?.map(Some),
            None => [Some(self.lock_target(&plan.target).await?), None],
        };
        let (recorded, mut error) = self
            .unpublish(attachment, request(plan.target.clone()), missing, UsedBy::Record)
            .await?;
        let mut outcome = plan::detach_outcome(recorded, &plan.present, None);
        let mut unpublished = vec![plan.target.node_id.clone()];
        if let (DetachOutcome::UnpublishPresent, Some(present)) = (outcome, present_target) {
            tracing::info!(recorded = %plan.target.node_id, present = %present.node_id, "the node has another id now; unpublishing that, too");
            // The next process repeats the first call.
            self.unless_draining(std::future::ready(Ok(()))).await?;
            unpublished.push(present.node_id.clone());
            let (present, present_error) = self
                .unpublish(attachment, request(present), missing, UsedBy::RecordOrPresentId)
                .await?;
            outcome = plan::detach_outcome(recorded, &plan.present, Some(present));
            error = present_error.or(error);
        }
        let error = error.map(|error| SyncError::call_without(missing, &error));
        match (outcome, error) {
            (DetachOutcome::Detached, _) => self.verify_unpublished(attachment, &unpublished),
            (DetachOutcome::Unresolved, Some(error)) => Err(SyncError::unresolved(plan, &error)),
            (_, Some(error)) => Err(error),
            (_, None) => Err(SyncError::outdated()),
        }
    }

    /// The node may have registered again during the calls: then its new id is not unpublished yet.
    fn verify_unpublished(&self, attachment: &Attachment, unpublished: &[Arc<str>]) -> Result<(), SyncError> {
        let inputs = self.state().newest_inputs(attachment);
        let present = inputs.and_then(|inputs| inputs.node?.id.clone());
        match present.is_none_or(|id| unpublished.contains(&id)) {
            true => Ok(()),
            false => Err(SyncError::outdated()),
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
        let left = self.request(attachment, AttachmentRequest::RemoveFinalizer).await;
        let left = left.map_err(|error| self.keep_unpublished(attachment, &error))?;
        self.observe_latency(Operation::Detach, attachment);
        match left {
            // Another client added a finalizer that the store did not have, so the status is wrong now.
            Some(left) if left.says_attached() => self.mark_detached(&left).await,
            Some(_) | None => Ok(()),
        }
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<(), SyncError> {
        let marked = self.request(attachment, AttachmentRequest::MarkDetached).await;
        marked.map_err(|error| self.keep_unpublished(attachment, &error))?;
        Ok(())
    }

    /// The volume is unpublished, and a write failed that says so: the next sync repeats the write alone.
    fn keep_unpublished(&self, attachment: &Attachment, error: &Error) -> SyncError {
        self.state()
            .keep_pending(attachment, PendingStatusWrite::Unpublished);
        SyncError::api("could not mark as detached", error)
    }
}
