//! Republish to a node's present id: after a node registered again under another id, its volumes are published to that id.

use std::sync::Arc;

use super::attach::Published;
use super::unpublish::DetachSecrets;
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient};
use crate::kube_api::{AttachmentRequest, Cluster};
use crate::model::{Attachment, PublishTarget, Recorded, Secrets};
use crate::plan::{AttachPlan, Operation, Record, UnpublishResult, UsedBy};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Writes an error into the status of an attached volume before it is republished on a node whose id changed. Returns
    /// whether the VolumeAttachment is still wanted.
    ///
    /// After a crash between the record of the new id and its publish, nothing else that is stored shows that the volume is
    /// published nowhere. The error of an attached volume gets it attached again, and success clears it.
    pub(super) async fn report_new_node_id(
        &self,
        attachment: &Attachment,
        plan: &AttachPlan,
        present: &str,
    ) -> Result<bool, SyncError> {
        if attachment.attach_error.is_some() {
            return Ok(true);
        }
        let PublishTarget { volume_id, node_id } = &plan.target;
        let message = format!(
            "volume {volume_id:?} was published to node id {node_id:?}, and the node's id is {present:?} now; publishing it again"
        );
        let problem = self.problem(&message, None);
        let save = AttachmentRequest::SaveError(Operation::Attach, &problem);
        match self.request(attachment, save).await {
            Ok(newest) => Ok(newest.is_some_and(|newest| !newest.deleting)),
            Err(error) => Err(SyncError::api("could not save VolumeAttachment", &error)),
        }
    }

    /// Publishes to the node's present id, as the driver does not know the recorded one.
    ///
    /// The record changes under the locks of both targets: under the old one, since until then other detaches may leave the
    /// volume there to this VolumeAttachment; under the new one, since its status, which says attached throughout, is about
    /// the new target from then on, and a detach that began earlier must not unpublish that.
    pub(super) async fn publish_to_present_id(
        &self,
        attachment: &Arc<Attachment>,
        plan: &mut AttachPlan,
        secrets: Secrets,
        error: CallError,
    ) -> Result<Published, SyncError> {
        let Some(node_id) = plan
            .other_node_id
            .take()
            .filter(|_| error.code.is_unknown_object())
        else {
            return Err(SyncError::call(&error));
        };
        tracing::info!(%error, %node_id, "the driver does not know the recorded node id; trying the present one");
        let present = PublishTarget {
            node_id: node_id.clone(),
            ..plan.target.clone()
        };
        let both = self.target_mutexes.lock_both(&plan.target, &present);
        let [recorded_guard, present_guard] = self.unless_draining(both).await?;
        self.verify_node_id(attachment, &present)?;
        self.unpublish_recorded(attachment, plan, secrets.clone(), &error)
            .await?;
        self.verify_node_id(attachment, &present)?;
        let recorded = plan.record.as_ref().map(|record| &record.annotations);
        let annotations = Recorded {
            node_id: Some(node_id),
            ..recorded.unwrap_or(&attachment.recorded).clone()
        };
        plan.target = present;
        let record = Record {
            annotations,
            whole: true,
        };
        if !self
            .write_unless_draining(self.record(attachment, &record))
            .await?
        {
            return Err(SyncError::call(&error));
        }
        drop(recorded_guard);
        let published = self.publish(attachment, plan, secrets).await;
        let context = published.map_err(|error| SyncError::call(&error))?;
        Ok((context, present_guard))
    }

    /// Adds our finalizer to an attached VolumeAttachment that lost it and cannot be republished (for example, because its
    /// PersistentVolume was deleted): its record suffices for a detach, and detaches of the same volume wait for it.
    pub(super) async fn restore_finalizer(&self, attachment: &Attachment) -> Result<(), SyncError> {
        let Attachment { recorded, .. } = attachment;
        let is_recorded = recorded.node_id.is_some() && recorded.handle.is_some();
        if attachment.attached && !attachment.finalizer && is_recorded {
            let record = Record {
                annotations: recorded.clone(),
                whole: true,
            };
            self.record(attachment, &record).await?;
        }
        Ok(())
    }

    /// The node may have registered again during a wait or a call.
    fn verify_node_id(&self, attachment: &Attachment, present: &PublishTarget) -> Result<(), SyncError> {
        let inputs = self.state().newest_inputs(attachment);
        let node = inputs.and_then(|inputs| inputs.node);
        match node.is_some_and(|node| node.id.as_ref() == Some(&present.node_id)) {
            true => Ok(()),
            false => Err(SyncError::outdated()),
        }
    }

    /// Unpublishes the target of `plan`, whose record is about to be overwritten: the driver's `error` on its publish may
    /// not have been about the node id.
    async fn unpublish_recorded(
        &self,
        attachment: &Attachment,
        plan: &AttachPlan,
        secrets: Secrets,
        error: &CallError,
    ) -> Result<(), SyncError> {
        let secrets = DetachSecrets {
            content: secrets,
            missing: None,
        };
        let unpublished = self
            .unpublish(attachment, &plan.target, &secrets, plan.migrated, UsedBy::Record)
            .await?;
        match unpublished {
            (UnpublishResult::Failed | UnpublishResult::InvalidArgument, Some(left)) => {
                tracing::warn!(error = %left, "the volume may still be published under the recorded node id, which stays recorded");
                Err(SyncError::call(error))
            }
            (_, _) => Ok(()),
        }
    }
}
