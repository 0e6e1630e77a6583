//! The calls that the executor sends to the driver.

use std::sync::Arc;

use csi_proto::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};

use super::state::key;
use super::{Controller, SyncError};
use crate::csi::{CallError, ControllerClient, Reach};
use crate::kube_api::Cluster;
use crate::model::{Attachment, PublishTarget, SecretRef, Secrets};
use crate::plan::{AttachPlan, Failure, Operation, Orphan, PublishEnd, Published, Subject, UnpublishResult};

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    fn secrets(&self, subject: &Subject, secret: Option<&SecretRef>) -> Option<Secrets> {
        self.progress(subject, |progress| progress.sync.secret(secret?)?.clone())
    }

    /// Calls ControllerPublishVolume. The state keeps a target that may be published until the status says so.
    pub(super) async fn publish(
        &self,
        subject: &Subject,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
    ) -> Result<(), SyncError> {
        let secrets = self.secrets(subject, plan.secret.as_ref());
        let request = ControllerPublishVolumeRequest {
            volume_id: plan.target.volume_id.to_string(),
            node_id: plan.target.node_id.to_string(),
            volume_capability: Some(plan.capability.clone()),
            readonly: plan.read_only,
            secrets: secrets.unwrap_or_default().0,
            volume_context: plan.volume_context.clone().into_iter().collect(),
        };
        let connection = self.state().publish_begins(&attachment.uid, &plan.target);
        let result = self
            .call(&key(subject), self.csi.publish(request, plan.migrated))
            .await;
        let mut state = self.state();
        let may_be_published = result.as_ref().err().is_none_or(CallError::may_have_taken_effect);
        let end = match &result {
            Ok(_) => PublishEnd::Succeeded,
            Err(_) if may_be_published => PublishEnd::Unknown,
            Err(_) => PublishEnd::NoEffect,
        };
        state.publish_ended(&attachment.uid, end);
        if may_be_published {
            state.may_be_published(Orphan {
                target: plan.target.clone(),
                secret: plan.secret.clone(),
                migrated: plan.migrated,
                attachment: attachment.clone(),
            });
        }
        let context = result.map_err(|error| {
            // A pod uses an attached volume under the recorded node id, so it stays there although the node registers another one.
            let present = state.index.node_id(&attachment.node);
            match present.filter(|present| attachment.attached && **present != plan.target.node_id) {
                Some(present) => SyncError::other_node_id(&plan.target, present, &error),
                None => SyncError::call(&error),
            }
        })?;
        state.progress(subject).publish_succeeded(Published {
            target: plan.target.clone(),
            context,
            connection,
        });
        Ok(())
    }

    /// Calls ControllerUnpublishVolume with the first of the Secrets that was read. An answer that another proof may outweigh is
    /// no error yet.
    pub(super) async fn unpublish(
        &self,
        subject: &Subject,
        target: &PublishTarget,
        [secret, recorded]: [Option<&SecretRef>; 2],
        migrated: bool,
    ) -> Result<(), SyncError> {
        let PublishTarget { volume_id, node_id } = target;
        if subject.operation() != Some(Operation::Detach) {
            tracing::warn!(volume = %volume_id, %node_id, "unpublishing the target of an earlier attach");
        }
        let not_connected = || SyncError::call(&CallError::not_connected("the CSI driver is not connected"));
        let session = self.csi.session().ok_or_else(not_connected)?;
        let secrets = self.secrets(subject, secret);
        // The Secret that the volume has, or had when it was published.
        let missing = secret.or(recorded).filter(|_| secrets.is_none());
        let secrets = secrets.or_else(|| self.secrets(subject, recorded));
        let is_former = secret.is_none() && secrets.is_some();
        let request = ControllerUnpublishVolumeRequest {
            volume_id: volume_id.to_string(),
            node_id: node_id.to_string(),
            secrets: secrets.unwrap_or_default().0,
        };
        let error = self
            .call(&key(subject), self.csi.unpublish(request, migrated))
            .await
            .err();
        let result = match &error {
            None => UnpublishResult::Unpublished,
            // An answer of another session may be about another process, whose caches are cold.
            Some(error) if error.reach == Reach::Answered && self.csi.session() == Some(session) => {
                UnpublishResult::from_code(error.code.number(), missing.is_none())
            }
            Some(_) => UnpublishResult::Failed,
        };
        self.state().unpublish_ended(subject, target, session, result);
        let Some(error) = error else {
            tracing::debug!(volume = %volume_id, %node_id, "unpublished");
            return Ok(());
        };
        let failed = SyncError::call_without(missing, is_former, &error);
        if result == UnpublishResult::Failed {
            return Err(failed);
        }
        let SyncError { code, message, .. } = failed;
        self.progress(subject, |progress| {
            progress.sync.failed = Some(Failure { code, message })
        });
        Ok(())
    }
}
