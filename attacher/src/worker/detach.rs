//! Detach: unpublish, then let go.

use super::problem::Failure;
use super::{Worker, called, unread, unwritten};
use crate::csi::{CallError, Controller, UnpublishRequest};
use crate::decide::{self, DetachPlan, Facts, Wanted};
use crate::engine::{Answer, Held};
use crate::kube_api::{Cluster, Error, Released, Secrets};
use crate::model::{Attachment, Recorded, SecretRef, Target};
use crate::report::chain;

impl<K: Cluster, D: Controller> Worker<K, D> {
    /// Detaches the volume, or takes up where an earlier run left off. A `repair` is for an attachment
    /// that was let go of.
    pub(super) async fn detach(
        &self,
        facts: Facts,
        answer: Option<Answer>,
        repair: bool,
    ) -> Result<(), Failure> {
        let attachment = facts.attachment.clone();
        if answer != Some(Answer::Unpublished) {
            // Nothing of ours on the attachment keeps its successor from being made and attached.
            if repair && !Box::pin(self.unless_winding_up(self.is_still_there(&attachment))).await? {
                return Ok(());
            }
            // With the handle recorded the volume is not needed; it may be long gone.
            let look = async {
                let driver = self.driver().await?;
                // The driver may have been away for long.
                let facts = match self.engine().facts(&attachment) {
                    Some(newest) => Facts {
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
            let (facts, driver) = Box::pin(self.unless_winding_up(look)).await?;
            let Recorded { handle, node_id, .. } = &attachment.recorded;
            let was_called_for = attachment.finalizer || node_id.is_some();
            if driver.capabilities.publish {
                match decide::detach(&facts, &driver) {
                    Ok(plan) => self.unpublish_unless_held(&attachment, &plan).await?,
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
        self.announce_recovery(Wanted::Detach, &attachment);
        Ok(())
    }

    async fn is_still_there(&self, attachment: &Attachment) -> Result<bool, Failure> {
        let newest = self.cluster.attachment(attachment).await;
        let seen = self.taken_in(attachment, newest, "could not read VolumeAttachment", |_| ())?;
        Ok(seen.is_some())
    }

    /// The volume stays where it is as long as another attachment needs it there; the last one to leave
    /// takes it along.
    async fn unpublish_unless_held(&self, attachment: &Attachment, plan: &DetachPlan) -> Result<(), Failure> {
        // In the turn, too, since whoever has it may be about to leave.
        let turn = Box::pin(self.turn_at(&plan.target)).await?;
        let needed = self.is_needed_at(attachment, &plan.target)?;
        drop(turn);
        if needed {
            return Ok(());
        }
        let secrets = self.secrets_if_there(plan.secret.as_ref());
        let (secrets, missing) = Box::pin(self.unless_winding_up(secrets)).await?;
        let request = |target| UnpublishRequest {
            target,
            secrets: secrets.clone(),
            migrated: plan.migrated,
        };
        let mut result = Box::pin(self.unpublish(attachment, request(plan.target.clone()))).await?;
        if let (Err(error), Some(node_id)) = (&result, &plan.other_node_id) {
            // The node was registered anew, under another id; whoever published may have done so too.
            if knows_nothing(error, missing) {
                tracing::info!(%error, %node_id, "the driver does not know the recorded node id; trying today's");
                let today = Target {
                    node_id: node_id.clone(),
                    ..plan.target.clone()
                };
                result = Box::pin(self.unpublish(attachment, request(today))).await?;
            }
        }
        result.map_err(|error| failed_without(missing, &error))
    }

    /// Whether another attachment needs the volume there, and will unpublish it one day: its finalizer says
    /// so. Of one that has none that day is in doubt, so whoever wants to let go waits until it has it.
    pub(super) fn is_needed_at(&self, attachment: &Attachment, target: &Target) -> Result<bool, Failure> {
        let mut engine = self.engine();
        let Target { handle, node_id } = target;
        match engine.held_besides(attachment, target) {
            Held::ByNobody | Held::ByLeaving => Ok(false),
            Held::ByUnguarded => {
                engine.guard_besides(attachment, target);
                Err(Failure::unguarded(target))
            }
            Held::ByLiving => {
                tracing::info!(volume = %handle, %node_id, "another VolumeAttachment needs the volume there; not unpublishing");
                Ok(true)
            }
        }
    }

    /// Calls the driver, unless another attachment needs the volume there: from that look on to the answer,
    /// none comes to have it there.
    async fn unpublish(
        &self,
        attachment: &Attachment,
        request: UnpublishRequest,
    ) -> Result<Result<(), CallError>, Failure> {
        let _turn = self.turn_at(&request.target).await?;
        if self.is_needed_at(attachment, &request.target)? {
            return Ok(Ok(()));
        }
        self.may_begin()?;
        let Target { handle, node_id } = request.target.clone();
        let result = self.csi.unpublish(request).await;
        if result.is_ok() {
            tracing::debug!(volume = %handle, %node_id, "detached");
        }
        Ok(result)
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
        self.reached(Wanted::Detach, attachment);
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
    unwritten("could not mark as detached", error, Answer::Unpublished)
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
