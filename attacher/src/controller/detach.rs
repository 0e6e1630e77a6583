//! Detach: unpublish, then remove the finalizer.

use std::sync::Arc;

use super::state::PendingStatusWrite;
use super::{Controller, SyncError};
use crate::csi::ControllerClient;
use crate::kube_api::{AttachmentRequest, Cluster, Error};
use crate::model::{Attachment, Driver, Uid};
use crate::plan::{
    self, AttachInputs, Decision, DetachPlan, ListEvidence, Operation, Proof, TargetEvidence, UnpublishResult,
};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Detaches the volume, or completes what an earlier sync began.
    pub(super) async fn detach(&self, attachment: &Arc<Attachment>) -> Result<(), SyncError> {
        let pending = self.state().state_of(&attachment.uid).pending.clone();
        let proof = if let Some(PendingStatusWrite::Unpublished(proof)) = pending {
            // The node may have registered again since the calls.
            let verified = self.verify_unpublished(attachment, &proof);
            verified.inspect_err(|_| self.state().state_of(&attachment.uid).pending = None)?;
            Some(proof)
        } else {
            // Without our finalizer the object may have been replaced by a successor that is attached.
            if !attachment.finalizer && self.unless_draining(self.read(attachment)).await??.is_none() {
                return Ok(());
            }
            let (inputs, driver) = self.unless_draining(self.detach_inputs(attachment)).await??;
            let proof = self.unpublish_everywhere(&inputs, &driver).await?;
            self.state().state_of(&attachment.uid).unwritten_publish = None;
            proof
        };
        let written = self
            .mark_detached_and_remove_finalizer(attachment, proof.as_ref())
            .await;
        written.map_err(|error| {
            // The next sync repeats only the writes.
            if let Some(proof) = proof.filter(Proof::is_by_answers) {
                self.state()
                    .keep_pending(attachment, PendingStatusWrite::Unpublished(proof));
            }
            SyncError::api("could not mark as detached", &error)
        })?;
        tracing::info!("detached");
        self.report_recovery(Operation::Detach, attachment);
        Ok(())
    }

    /// Reads the inputs once the driver is connected, which may take long.
    async fn detach_inputs(&self, attachment: &Arc<Attachment>) -> Result<(AttachInputs, Driver), SyncError> {
        let driver = self.ready_driver().await?;
        let mut inputs = self.state().inputs(attachment);
        // With a recorded handle the PersistentVolume is not needed. It may have been deleted long ago.
        if attachment.recorded.handle.is_none()
            && inputs.volume.is_none()
            && let Some(name) = attachment.volume_name()
        {
            inputs.volume = self.missing_volume(name).await?;
        }
        Ok((inputs, driver))
    }

    /// Unpublishes the volume from every node id under which it may be attached. `None` if it was never published.
    async fn unpublish_everywhere(
        &self,
        inputs: &AttachInputs,
        driver: &Driver,
    ) -> Result<Option<Proof>, SyncError> {
        let attachment = &inputs.attachment;
        let may_be_published = attachment.finalizer || attachment.recorded.node_id.is_some();
        match plan::detach(inputs, driver) {
            Ok(_) if !driver.capabilities.publish && !may_be_published => Ok(None),
            Ok(plan) if !driver.capabilities.publish => {
                self.prove_without_calls(&attachment.uid, &plan).map(Some)
            }
            Ok(plan) => Ok(Some(self.unpublish_node_ids(attachment, &plan).await?.0)),
            Err(refusal) if may_be_published => Err(SyncError::refused(&refusal)),
            Err(refusal) => {
                tracing::info!(%refusal, "the volume was never published");
                Ok(None)
            }
        }
    }

    /// The proof for a driver that reports no publish calls: the operator's word alone, as it is most likely restarting wrongly.
    pub(super) fn prove_without_calls(&self, uid: &Uid, plan: &DetachPlan) -> Result<Proof, SyncError> {
        let no_calls = TargetEvidence {
            result: UnpublishResult::NoPublishCalls,
            answers: None,
            lists: ListEvidence::default(),
        };
        let Decision::Released(proof) = plan::decide(&self.evidence(uid, plan, no_calls)) else {
            return Err(SyncError::no_publish_calls(&self.driver.finalizer));
        };
        Ok(proof)
    }

    /// Writes the status if other finalizers keep the object, then removes our finalizer, which ends the detach latency. In this
    /// order a crash in between repeats the detach; in the other the status would stay wrong.
    async fn mark_detached_and_remove_finalizer(
        &self,
        attachment: &Attachment,
        proof: Option<&Proof>,
    ) -> Result<(), Error> {
        let outlives = attachment.foreign_finalizers || !attachment.finalizer;
        if outlives && attachment.says_attached() {
            self.request(attachment, AttachmentRequest::MarkDetached).await?;
        }
        let Some(proof) = proof.filter(|_| attachment.finalizer) else {
            return Ok(());
        };
        let left = self
            .request(attachment, AttachmentRequest::RemoveFinalizer(proof))
            .await?;
        self.observe_latency(Operation::Detach, attachment);
        match left {
            // Another client added a finalizer that the store did not have, so the status is wrong now.
            Some(left) if left.says_attached() => {
                self.request(&left, AttachmentRequest::MarkDetached).await?;
                Ok(())
            }
            Some(_) | None => Ok(()),
        }
    }
}
