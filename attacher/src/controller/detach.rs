//! Detach: unpublish, then let go.

use std::sync::Arc;

use super::sync_error::Failure;
use super::{Controller, called, unread, unwritten};
use crate::controller::state::{PendingStatusWrite, TargetUsage, UsedBy};
use crate::csi::{CallError, ControllerClient, UnpublishRequest};
use crate::kube_api::{Cluster, Error, Released, Secrets};
use crate::model::{Attachment, PublishTarget, Recorded, SecretRef};
use crate::plan::{self, AttachInputs, DetachOutcome, DetachPlan, Operation, PresentNodeId, UnpublishResult};
use crate::report::chain;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Detaches the volume, or takes up where an earlier run left off. A `repair` is for an attachment
    /// that was let go of.
    pub(super) async fn detach(
        &self,
        facts: AttachInputs,
        answer: Option<PendingStatusWrite>,
        repair: bool,
    ) -> Result<(), Failure> {
        let attachment = facts.attachment.clone();
        if answer != Some(PendingStatusWrite::Unpublished) {
            // Nothing of ours on the attachment keeps its successor from being made and attached.
            if repair && !Box::pin(self.unless_draining(self.is_still_there(&attachment))).await? {
                return Ok(());
            }
            // With the handle recorded the volume is not needed; it may be long gone.
            let look = async {
                let driver = self.driver().await?;
                // The driver may have been away for long.
                let facts = match self.state().facts(&attachment) {
                    Some(newest) => AttachInputs {
                        attachment: facts.attachment,
                        volume: newest.volume.or(facts.volume),
                        node: newest.node,
                    },
                    None => facts,
                };
                let facts = if attachment.recorded.handle.is_none() {
                    self.with_volume(facts).await?
                } else {
                    facts
                };
                Ok((facts, driver))
            };
            let (facts, driver) = Box::pin(self.unless_draining(look)).await?;
            let Recorded { handle, node_id, .. } = &attachment.recorded;
            let was_called_for = attachment.finalizer || node_id.is_some();
            if driver.capabilities.publish {
                match plan::detach(&facts, &driver) {
                    Ok(plan) => Box::pin(self.unpublish_everywhere(&attachment, &plan)).await?,
                    Err(refusal) if was_called_for => return Err(Failure::refused(&refusal)),
                    Err(refusal) => tracing::info!(%refusal, "nothing was ever published for it"),
                }
            } else if was_called_for {
                tracing::warn!(
                    volume = handle.as_deref(),
                    node_id = node_id.as_deref(),
                    "the driver has no ControllerUnpublishVolume any more; letting go without a call"
                );
            }
        }
        Box::pin(self.let_go(&attachment)).await?;
        self.announce_recovery(Operation::Detach, &attachment);
        Ok(())
    }

    async fn is_still_there(&self, attachment: &Attachment) -> Result<bool, Failure> {
        let newest = self.cluster.attachment(attachment).await;
        let seen = self.taken_in(attachment, newest, "could not read VolumeAttachment", |_| ())?;
        Ok(seen.is_some())
    }

    /// Unpublishes the recorded node id, and the node's present id where it differs: the node may be the same machine
    /// under another id, and a driver may answer OK for an id that it no longer knows.
    async fn unpublish_everywhere(&self, attachment: &Attachment, plan: &DetachPlan) -> Result<(), Failure> {
        let secrets = self.secrets_if_there(plan.secret.as_ref());
        let (secrets, missing) = Box::pin(self.unless_draining(secrets)).await?;
        let request = |target| UnpublishRequest {
            target,
            secrets: secrets.clone(),
            migrated: plan.migrated,
        };
        let failed = |error| failed_without(missing, &error);
        let recorded = request(plan.target.clone());
        let recorded = Box::pin(self.unpublish_unless_in_use(attachment, recorded, UsedBy::Record)).await?;
        let (recorded, mut error) = summarized(recorded, missing);
        let mut outcome = plan::detach_outcome(recorded, &plan.present, None);
        let mut unpublished = vec![&plan.target.node_id];
        if let (DetachOutcome::UnpublishPresent, PresentNodeId::Differs(node_id)) = (outcome, &plan.present) {
            tracing::info!(recorded = %plan.target.node_id, present = %node_id, "the node has another id now; unpublishing that, too");
            let present = PublishTarget {
                node_id: node_id.clone(),
                ..plan.target.clone()
            };
            let used_by = UsedBy::RecordOrPresentId;
            let result =
                Box::pin(self.unpublish_unless_in_use(attachment, request(present), used_by)).await?;
            let (present, present_error) = summarized(result, missing);
            outcome = plan::detach_outcome(recorded, &plan.present, Some(present));
            error = present_error.or(error);
            unpublished.push(node_id);
        }
        match (outcome, error) {
            (DetachOutcome::Detached, _) => self.has_no_other_id(attachment, &unpublished),
            (DetachOutcome::Unresolved, Some(error)) => Err(Failure::unresolved(plan, &failed(error))),
            (_, Some(error)) => Err(failed(error)),
            (_, None) => Err(Failure::outdated()),
        }
    }

    /// The node may have registered again during the calls: then its new id is not unpublished yet.
    fn has_no_other_id(&self, attachment: &Attachment, unpublished: &[&Arc<str>]) -> Result<(), Failure> {
        let facts = self.state().facts(attachment);
        let present = facts.and_then(|facts| facts.node?.id.clone());
        match present.is_none_or(|id| unpublished.contains(&&id)) {
            true => Ok(()),
            false => Err(Failure::outdated()),
        }
    }

    /// Whether another attachment needs the volume there, and will unpublish it one day: its finalizer says
    /// so. Of one that has none that day is in doubt, so whoever wants to let go waits until it has it.
    pub(super) fn is_needed_at(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        used_by: UsedBy,
    ) -> Result<bool, Failure> {
        let mut state = self.state();
        let PublishTarget {
            volume_id: handle,
            node_id,
        } = target;
        match state.usage_besides(attachment, target, used_by) {
            TargetUsage::Unused | TargetUsage::Deleting => Ok(false),
            TargetUsage::MissingFinalizer => {
                state.restore_finalizers(attachment, target, used_by);
                match used_by {
                    UsedBy::Record => Err(Failure::unguarded(target)),
                    // The volume was not published there for this attachment, so it does not wait.
                    UsedBy::RecordOrPresentId => Ok(true),
                }
            }
            TargetUsage::InUse => {
                tracing::info!(volume = %handle, %node_id, "another VolumeAttachment needs the volume there; not unpublishing");
                Ok(true)
            }
        }
    }

    /// Calls the driver, unless another attachment uses the volume there (`None`): from that check on to the answer,
    /// none comes to have it there.
    async fn unpublish_unless_in_use(
        &self,
        attachment: &Attachment,
        request: UnpublishRequest,
        used_by: UsedBy,
    ) -> Result<Option<Result<(), CallError>>, Failure> {
        let _turn = self.lock_target(&request.target).await?;
        if self.is_needed_at(attachment, &request.target, used_by)? {
            return Ok(None);
        }
        self.check_draining()?;
        let PublishTarget {
            volume_id: handle,
            node_id,
        } = request.target.clone();
        let result = self.csi.unpublish(request).await;
        if result.is_ok() {
            tracing::debug!(volume = %handle, %node_id, "detached");
        }
        Ok(Some(result))
    }

    /// A Secret that is gone does not hold up a detach for ever: the driver may do without, and if it
    /// does not, it says so. One that we may not read may be gone as well: with its namespace the RoleBinding
    /// goes that let us read it, and the API server says no more than that it is forbidden.
    pub(super) async fn secrets_if_there<'s>(
        &self,
        reference: Option<&'s SecretRef>,
    ) -> Result<(Secrets, Option<&'s SecretRef>), Failure> {
        match self.secrets(reference).await {
            Ok(secrets) => Ok((secrets, None)),
            Err((secret, error)) if error.is_gone() || error.is_forbidden() => {
                tracing::warn!(%secret, error = chain(&error), "cannot have the Secret for the detach; calling the driver without it");
                Ok((Secrets::default(), reference))
            }
            Err((secret, error)) => Err(unread(&secret, &error)),
        }
    }

    /// Tells the status if others keep the object, then takes our finalizer off. In this order a
    /// crash in between repeats the detach; in the other the status would be wrong until somebody repairs it.
    async fn let_go(&self, attachment: &Attachment) -> Result<(), Failure> {
        let outlives = attachment.foreign_finalizers || !attachment.finalizer;
        if outlives && attachment.says_attached() {
            self.mark_detached(attachment).await?;
        }
        if !attachment.finalizer {
            return Ok(());
        }
        let left = match self.cluster.release(attachment).await {
            Ok(Released::Kept(left)) => Some(left),
            Ok(Released::Gone) => None,
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(not_marked(&error)),
        };
        self.reached(Operation::Detach, attachment);
        let Some(left) = left else {
            self.departed(attachment);
            return Ok(());
        };
        self.written((*left).clone());
        // Somebody put a finalizer on it that we had not seen, and its status is wrong now.
        if left.says_attached() {
            self.mark_detached(&left).await?;
        }
        Ok(())
    }

    async fn mark_detached(&self, attachment: &Attachment) -> Result<(), Failure> {
        match self.cluster.mark_detached(attachment).await {
            Ok(attachment) => self.written(attachment),
            Err(error) if error.is_gone() => self.departed(attachment),
            Err(error) => return Err(not_marked(&error)),
        }
        Ok(())
    }
}

/// The volume is detached, and that is not written down yet.
fn not_marked(error: &Error) -> Failure {
    unwritten(
        "could not mark as detached",
        error,
        PendingStatusWrite::Unpublished,
    )
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
        Some(Err(error)) if knows_nothing(&error, missing) => (UnpublishResult::InvalidArgument, Some(error)),
        Some(Err(error)) => (UnpublishResult::Failed, Some(error)),
    }
}

/// Whether an unpublish failed because the driver does not know the volume or the node, so that nothing is there. After
/// a call without the Secret that is `missing`, INVALID_ARGUMENT may be about that.
pub(super) fn knows_nothing(error: &CallError, missing: Option<&SecretRef>) -> bool {
    error.code.is_not_found() || missing.is_none() && error.code.is_unknown_object()
}

pub(super) fn failed_without(secret: Option<&SecretRef>, error: &CallError) -> Failure {
    let failure = called(error);
    match secret {
        None => failure,
        Some(secret) => Failure {
            message: format!(
                "{} (called without secret {:?}, which does not exist or may not be read)",
                failure.message,
                secret.to_string()
            ),
            ..failure
        },
    }
}
