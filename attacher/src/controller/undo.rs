//! Unpublish what nobody else would: the rest of an earlier attempt, and of an attach that lost its attachment.

use std::time::Duration;

use super::Controller;
use super::detach::{failed_without, knows_nothing};
use super::keyed_mutex::KeyedGuard;
use super::sync_error::Failure;
use crate::controller::state::{TargetUsage, UsedBy};
use crate::csi::{CallError, ControllerClient, Reach, UnpublishRequest};
use crate::kube_api::Cluster;
use crate::model::{Attachment, PublishTarget};
use crate::plan::{self, AttachPlan, Operation, Stale};
use crate::workqueue::Class;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Looks at the attachment afresh. What looks like the rest of a failed attempt may have succeeded,
    /// if the answer to its last write was lost and the watch is late: that must not be unpublished.
    pub(super) async fn is_still_wanted(&self, attachment: &Attachment) -> Result<bool, Failure> {
        let newest = self.cluster.attachment(attachment).await;
        let wanted = self.taken_in(attachment, newest, "could not read VolumeAttachment", |newest| {
            // Who is attached may be wanted again, but what he has is in use.
            !newest.attached && plan::operation(newest, true) == Some(Operation::Attach)
        })?;
        Ok(wanted.unwrap_or(false))
    }

    /// Unpublishes what an earlier attempt published elsewhere, unless somebody else needs it there. The turn
    /// there ends when the record is overwritten: until then others may leave the volume to this attachment.
    pub(super) async fn undo(
        &self,
        attachment: &Attachment,
        stale: &Stale,
        migrated: bool,
    ) -> Result<KeyedGuard<'_, PublishTarget>, Failure> {
        let read = self.secrets_if_there(stale.secret.as_ref());
        let (secrets, missing) = self.unless_draining(read).await?;
        let turn = self.lock_target(&stale.target).await?;
        if self.is_needed_at(attachment, &stale.target, UsedBy::Record)? {
            // The id is another node's by now, and the volume is in use there.
            return Ok(turn);
        }
        tracing::info!(
            volume = %stale.target.volume_id,
            node_id = %stale.target.node_id,
            "unpublishing from where it was published before"
        );
        let request = UnpublishRequest {
            target: stale.target.clone(),
            secrets,
            migrated,
        };
        self.check_draining()?;
        match self.csi.unpublish(request).await {
            Ok(()) => Ok(turn),
            // A volume or node that the driver does not know holds nothing; the CSI specification leaves
            // NOT_FOUND to drivers that cannot tell. Waiting for another answer would block the pod.
            Err(error) if knows_nothing(&error, missing) => {
                tracing::info!(%error, "the driver knows nothing of it");
                Ok(turn)
            }
            Err(error) => Err(failed_without(missing, &error)),
        }
    }

    /// What a call that failed did all the same, perhaps, is undone if nobody is left to do so one day.
    pub(super) async fn undo_if_departed(
        &self,
        attachment: &Attachment,
        plan: &AttachPlan,
        error: &CallError,
    ) {
        let is_there = || {
            let state = self.state();
            let newest = state.attachment(&attachment.name);
            newest.is_some_and(|newest| newest.uid == attachment.uid)
        };
        let may_have_been_done = match error.reach {
            Reach::Answered | Reach::Interrupted => error.class() != Class::Final,
            Reach::Unsent | Reach::NotSent => false,
        };
        if may_have_been_done && !is_there() {
            Box::pin(self.undo_orphan(attachment, plan)).await;
        }
    }

    /// The attachment vanished while the call was under way: somebody took our finalizer off, or the API server,
    /// asked to delete it before the finalizer was there, did so although it came in between. With nobody left to
    /// detach it, the publish would stay for ever. So it is undone in the turn of the attach, in a few attempts,
    /// until somebody comes who is answerable for the volume there.
    pub(super) async fn undo_orphan(&self, attachment: &Attachment, plan: &AttachPlan) {
        tracing::warn!("the VolumeAttachment vanished during its attach; unpublishing again");
        let mut pauses = PAUSES_SECONDS.into_iter().map(Duration::from_secs);
        loop {
            let secrets = self.secrets(plan.secret.as_ref()).await.unwrap_or_default();
            if self.is_succeeded(attachment, plan) {
                return;
            }
            let request = UnpublishRequest {
                target: plan.target.clone(),
                secrets,
                migrated: plan.migrated,
            };
            let error = match self.csi.unpublish(request).await {
                Ok(()) => return,
                Err(error) if error.code.is_not_found() => return,
                Err(error) => error,
            };
            if let Some(pause) = pauses.next() {
                let pause = tokio::time::sleep(pause);
                if self.draining.run_until_cancelled(pause).await.is_some() {
                    continue;
                }
            }
            tracing::error!(
                volume = %plan.target.volume_id,
                node_id = %plan.target.node_id,
                %error,
                "the volume stays published without a VolumeAttachment"
            );
            return;
        }
    }

    /// Whether somebody else sees to it that the volume does not stay there for ever. One of the same name that has
    /// not stored our finalizer does not: it waits for this very job to end, and may then be deleted before it has,
    /// or be attached elsewhere.
    fn is_succeeded(&self, attachment: &Attachment, plan: &AttachPlan) -> bool {
        let mut state = self.state();
        match state.usage_besides(attachment, &plan.target, UsedBy::Record) {
            // Whoever leaves may rely on this very attachment.
            TargetUsage::Unused | TargetUsage::Deleting => false,
            TargetUsage::MissingFinalizer => {
                state.restore_finalizers(attachment, &plan.target, UsedBy::Record);
                true
            }
            TargetUsage::InUse => true,
        }
    }
}

/// Between the attempts to undo what nobody would undo later. Not for long, since a new attachment of the volume and
/// the node waits for it.
const PAUSES_SECONDS: [u64; 8] = [1, 2, 4, 8, 8, 8, 8, 8];
