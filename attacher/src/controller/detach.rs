//! Detach: unpublish, then remove the finalizer.

use std::sync::Arc;

use super::state::PendingStatusWrite;
use super::{Controller, SyncError};
use crate::csi::ControllerClient;
use crate::kube_api::{AttachmentRequest, Cluster, Error};
use crate::model::{Attachment, Driver, Recorded};
use crate::plan::{self, AttachInputs, Operation};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Detaches the volume, or completes what an earlier sync began.
    pub(super) async fn detach(&self, attachment: &Arc<Attachment>) -> Result<(), SyncError> {
        let pending = self.state().state_of(&attachment.uid).pending.clone();
        let node_ids = if let Some(PendingStatusWrite::Unpublished { node_ids }) = pending {
            // The node may have registered again since the calls.
            let verified = self.verify_unpublished(attachment, &node_ids);
            verified.inspect_err(|_| self.state().state_of(&attachment.uid).pending = None)?;
            node_ids
        } else {
            // Without our finalizer the object may have been replaced by a successor that is attached.
            if !attachment.finalizer && self.unless_draining(self.read(attachment)).await??.is_none() {
                return Ok(());
            }
            let (inputs, driver) = self.unless_draining(self.detach_inputs(attachment)).await??;
            let node_ids = self.unpublish_everywhere(&inputs, &driver).await?;
            self.state().state_of(&attachment.uid).unwritten_publish = None;
            node_ids
        };
        let written = self.mark_detached_and_remove_finalizer(attachment).await;
        written.map_err(|error| {
            // The next sync repeats only the writes.
            self.state()
                .keep_pending(attachment, PendingStatusWrite::Unpublished { node_ids });
            SyncError::api("could not mark as detached", &error)
        })?;
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

    /// Unpublishes the volume from every node id under which it may be attached, and returns these. Empty if the driver or the
    /// VolumeAttachment needs no call.
    async fn unpublish_everywhere(
        &self,
        inputs: &AttachInputs,
        driver: &Driver,
    ) -> Result<Vec<Arc<str>>, SyncError> {
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
            return Ok(Vec::new());
        }
        match plan::detach(inputs, driver) {
            Ok(plan) => Ok(self.unpublish_node_ids(attachment, &plan).await?.0),
            Err(refusal) if may_be_published => Err(SyncError::refused(&refusal)),
            Err(refusal) => {
                tracing::info!(%refusal, "the volume was never published");
                Ok(Vec::new())
            }
        }
    }

    /// Writes the status if other finalizers keep the object, then removes our finalizer, which ends the detach latency. In this
    /// order a crash in between repeats the detach; in the other the status would stay wrong.
    async fn mark_detached_and_remove_finalizer(&self, attachment: &Attachment) -> Result<(), Error> {
        let outlives = attachment.foreign_finalizers || !attachment.finalizer;
        if outlives && attachment.says_attached() {
            self.request(attachment, AttachmentRequest::MarkDetached).await?;
        }
        if !attachment.finalizer {
            return Ok(());
        }
        let left = self
            .request(attachment, AttachmentRequest::RemoveFinalizer)
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
