//! Attach: store, publish, tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::detach::failed_without;
use super::problem::Failure;
use super::turns::Turn;
use super::{Worker, called, unread, unwritten};
use crate::cluster::{Cluster, Error, Released, Secrets};
use crate::csi::{CallError, Controller, PublishRequest, Reach, UnpublishRequest};
use crate::decide::{self, AttachPlan, Facts, Record, Stale, Wanted};
use crate::engine::{Answer, Held};
use crate::model::{Attachment, Driver, Recorded, Target};
use crate::queue::Class;

impl<K: Cluster, D: Controller> Worker<K, D> {
    /// Attaches the volume, or takes up where an earlier run left off; also an attachment that is attached
    /// already, as far as its status knows, and is to be repaired.
    pub(super) async fn attach(&self, facts: Facts, answer: Option<Answer>) -> Result<(), Failure> {
        let attachment = &facts.attachment.clone();
        let answer = answer.filter(|answer| matches!(answer, Answer::Published { .. }));
        let plan = match Box::pin(self.look(facts, answer.is_some())).await {
            Ok(plan) => plan,
            // Nobody was called, so what is known from the last time still holds.
            Err(failure) => return Err(Failure { answer, ..failure }),
        };
        let Some(mut plan) = plan else {
            return Box::pin(self.unless_winding_up(self.attach_without_call(attachment))).await;
        };
        if self.engine().is_moving(attachment) {
            // Written once more, the record is one to rely on again.
            let annotations = attachment.recorded.clone();
            plan.record.get_or_insert(Record { annotations });
        }
        let (context, _turn) = match known(answer, &plan) {
            // To write down an answer is no call, and goes on while we are winding up.
            Some(context) => (context, Box::pin(self.calls.take(&plan.target)).await),
            None => {
                // In boxes, so that an attach that waits for the driver does not take their room.
                let prepared = Box::pin(self.prepare(attachment, &plan)).await?;
                let Some(secrets) = prepared else {
                    return Ok(());
                };
                let turn = Box::pin(self.turn_at(&plan.target)).await?;
                self.may_begin()?;
                match Box::pin(self.publish(&plan, secrets.clone())).await {
                    Ok(context) => (context, turn),
                    Err(error) => {
                        self.undo_if_departed(attachment, &plan, &error).await;
                        drop(turn);
                        Box::pin(self.publish_elsewhere(attachment, &mut plan, secrets, error)).await?
                    }
                }
            }
        };
        Box::pin(self.mark_attached(attachment, &plan, context)).await
    }

    /// Plans the attach; `None` if the driver has no calls to publish volumes. Whoever has its `answered`
    /// call still to write down does not wait for the driver, and does so while we are winding up, too.
    async fn look(&self, facts: Facts, answered: bool) -> Result<Option<AttachPlan>, Failure> {
        let capabilities = self.engine().capabilities().filter(|_| answered);
        let (facts, driver) = match capabilities {
            Some(capabilities) => {
                let driver = Driver {
                    capabilities,
                    ..self.driver.clone()
                };
                (self.with_volume(facts).await?, driver)
            }
            None => {
                let look = async { Ok((self.with_volume(facts).await?, self.driver().await?)) };
                self.unless_winding_up(look).await?
            }
        };
        if !driver.capabilities.publish {
            return Ok(None);
        }
        decide::attach(&facts, &driver)
            .map(Some)
            .map_err(|refusal| Failure::refused(&refusal))
    }

    /// The driver has no calls to publish volumes, so wherever one is wanted, it is there. What an
    /// earlier version of the driver made us put on the attachment comes off, but for the record of its
    /// publish call: should the driver have calls again, that volume is still to be unpublished.
    async fn attach_without_call(&self, attachment: &Attachment) -> Result<(), Failure> {
        if !attachment.attached {
            match self.cluster.mark_attached(attachment, &BTreeMap::new()).await {
                Ok(attachment) => self.written(attachment),
                Err(error) if error.is_gone() => {
                    self.departed(attachment);
                    return Ok(());
                }
                Err(error) => return Err(Failure::api("failed to mark as attached", &error)),
            }
            tracing::debug!("attached without a call");
        }
        if !attachment.finalizer {
            return Ok(());
        }
        match self.cluster.release(attachment).await {
            Ok(Released::Kept(left)) => self.written(*left),
            Ok(Released::Gone) => self.departed(attachment),
            Err(error) if error.is_gone() => self.departed(attachment),
            Err(error) => {
                return Err(Failure::api(
                    "could not remove VolumeAttachment finalizer",
                    &error,
                ));
            }
        }
        Ok(())
    }

    /// Everything that must be undone, read, and stored, before the call. `None` if the attachment is not wanted
    /// any more.
    ///
    /// The Secret comes first: what cannot be read now may not be readable for a detach either, and an
    /// attachment without our finalizer can be deleted without one. Our finalizers on attachment and volume
    /// go out side by side. Each is stored before the call, and neither is taken back if the other is not: the
    /// attachment's makes it answerable for what others leave to it, from the moment it is stored.
    async fn prepare(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
    ) -> Result<Option<Secrets>, Failure> {
        let mut elsewhere = None;
        if let Some(stale) = &plan.stale {
            let wanted = Box::pin(self.unless_winding_up(self.is_still_wanted(attachment))).await?;
            if !wanted {
                return Ok(None);
            }
            elsewhere = Some(self.undo(attachment, stale, plan.migrated).await?);
        }
        let prepare = async {
            let secrets = self.secrets(plan.secret.as_ref()).await;
            let secrets = secrets.map_err(|(reference, error)| unread(&reference, &error))?;
            // Each to its end, whatever becomes of the other: a write that is given up on its way would be
            // sent again at each retry.
            let claim = self.claim(plan.claim.as_ref());
            let record = self.record(attachment, plan.record.as_ref());
            let (claimed, wanted) = futures::join!(claim, record);
            if !wanted? {
                return Ok(None);
            }
            claimed?;
            Ok(Some(secrets))
        };
        let prepared = self.unless_winding_up(prepare).await;
        // Nobody waits for a turn while he has one, or two might wait for each other.
        drop(elsewhere);
        prepared
    }

    /// Stores our finalizer and the record of the call. Says whether the attachment is still wanted.
    async fn record(&self, attachment: &Attachment, record: Option<&Record>) -> Result<bool, Failure> {
        let Some(record) = record else { return Ok(true) };
        let Recorded { handle, node_id, .. } = &attachment.recorded;
        if attachment.finalizer
            && (handle, node_id) != (&record.annotations.handle, &record.annotations.node_id)
        {
            self.engine().moves(attachment);
        }
        match self.cluster.record(attachment, record).await {
            Ok(newest) => {
                let wanted = !newest.deleting;
                self.written(newest);
                self.engine().stays(attachment);
                Ok(wanted)
            }
            Err(error) if error.is_gone() => {
                self.departed(attachment);
                Ok(false)
            }
            Err(error) => Err(Failure::api("could not save VolumeAttachment", &error)),
        }
    }

    async fn publish(
        &self,
        plan: &AttachPlan,
        secrets: Secrets,
    ) -> Result<BTreeMap<String, String>, CallError> {
        let request = PublishRequest {
            target: plan.target.clone(),
            capability: plan.capability.clone(),
            read_only: plan.read_only,
            volume_context: plan.volume_context.clone(),
            secrets,
            migrated: plan.migrated,
        };
        self.csi.publish(request).await
    }

    /// The driver does not know the node by the id under which the volume was published: the machine
    /// came back under another one, and is to have its volume again.
    ///
    /// The record moves in both turns. In the old one, since others may leave the volume there to this attachment
    /// until then; in the new one, since from then on its status, which never ceased to say so, says that it is
    /// attached there, and a detach that began earlier would still take it away.
    async fn publish_elsewhere<'t>(
        &'t self,
        attachment: &Attachment,
        plan: &mut AttachPlan,
        secrets: Secrets,
        error: CallError,
    ) -> Result<(BTreeMap<String, String>, Turn<'t, Target>), Failure> {
        let Some(node_id) = plan
            .other_node_id
            .take()
            .filter(|_| error.code.is_unknown_object())
        else {
            return Err(called(&error));
        };
        tracing::info!(%error, %node_id, "the driver does not know the recorded node id; trying today's");
        let today = Target {
            node_id: node_id.clone(),
            ..plan.target.clone()
        };
        let turns = async { Ok(self.calls.take_both(&plan.target, &today).await) };
        let (there, here) = self.unless_winding_up(turns).await?;
        self.leave(attachment, plan, secrets.clone(), &error).await?;
        let recorded = plan.record.as_ref().map(|record| &record.annotations);
        let annotations = Recorded {
            node_id: Some(node_id),
            ..recorded.unwrap_or(&attachment.recorded).clone()
        };
        plan.target = today;
        // With the record its state asks for nothing any more, though the volume is not there yet.
        self.engine().attach_again(attachment);
        // Before the call, as always.
        let record = Record { annotations };
        let record = self.record(attachment, Some(&record));
        if !self.unless_winding_up(record).await? {
            return Err(called(&error));
        }
        drop(there);
        self.may_begin()?;
        let published = self.publish(plan, secrets).await;
        let context = published.map_err(|error| called(&error))?;
        Ok((context, here))
    }

    /// Sees to it that nothing is left at the target of `plan`, whose record is about to be overwritten. The
    /// driver's `error` when it was to publish there may have been about something else than the node.
    async fn leave(
        &self,
        attachment: &Attachment,
        plan: &AttachPlan,
        secrets: Secrets,
        error: &CallError,
    ) -> Result<(), Failure> {
        if self.is_needed_at(attachment, &plan.target)? {
            return Ok(());
        }
        self.may_begin()?;
        let request = UnpublishRequest {
            target: plan.target.clone(),
            secrets,
            migrated: plan.migrated,
        };
        match self.csi.unpublish(request).await {
            Ok(()) => Ok(()),
            Err(left) if left.code.is_not_found() => Ok(()),
            Err(left) => {
                tracing::warn!(error = %left, "the volume may be where it was published before, and stays recorded there");
                Err(called(error))
            }
        }
    }

    async fn mark_attached(
        &self,
        attachment: &Attachment,
        plan: &AttachPlan,
        context: BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        match self.cluster.mark_attached(attachment, &context).await {
            Ok(written) => {
                self.written(written);
                // One that was attached before was only repaired: nobody waited since its creation.
                if !attachment.attached {
                    self.reached(Wanted::Attach, attachment);
                }
                tracing::debug!(volume = %plan.target.handle, node_id = %plan.target.node_id, "attached");
                self.announce_recovery(Wanted::Attach, attachment);
                Ok(())
            }
            Err(error) if error.is_gone() => {
                self.departed(attachment);
                self.undo_orphan(attachment, plan).await;
                Ok(())
            }
            // The volume is attached, and its status will say so as soon as it can be written. If the
            // API server will never take it (a context that is too large, say), people must know.
            Err(error) => {
                let answer = Answer::Published {
                    target: plan.target.clone(),
                    context,
                };
                let told = matches!(
                    error,
                    Error::Refused {
                        status: 400..=499,
                        ..
                    }
                );
                Err(Failure {
                    told,
                    ..unwritten("failed to mark as attached", &error, answer)
                })
            }
        }
    }

    /// Looks at the attachment afresh. What looks like the rest of a failed attempt may have succeeded,
    /// if the answer to its last write was lost and the watch is late: that must not be unpublished.
    async fn is_still_wanted(&self, attachment: &Attachment) -> Result<bool, Failure> {
        match self.cluster.attachment(attachment).await {
            Ok(newest) => {
                let wanted = decide::wanted(&newest, true) == Some(Wanted::Attach);
                self.written(newest);
                Ok(wanted)
            }
            Err(error) if error.is_gone() => {
                self.departed(attachment);
                Ok(false)
            }
            Err(error) => Err(Failure::api("could not read VolumeAttachment", &error)),
        }
    }

    /// Unpublishes what an earlier attempt published elsewhere, unless somebody else needs it there. The turn
    /// there ends when the record is overwritten: until then others may leave the volume to this attachment.
    async fn undo(
        &self,
        attachment: &Attachment,
        stale: &Stale,
        migrated: bool,
    ) -> Result<Turn<'_, Target>, Failure> {
        let read = self.secrets_if_there(stale.secret.as_ref());
        let (secrets, missing) = self.unless_winding_up(read).await?;
        let turn = self.turn_at(&stale.target).await?;
        if self.is_needed_at(attachment, &stale.target)? {
            // The id is another node's by now, and the volume is in use there.
            return Ok(turn);
        }
        tracing::info!(
            volume = %stale.target.handle,
            node_id = %stale.target.node_id,
            "unpublishing from where it was published before"
        );
        let request = UnpublishRequest {
            target: stale.target.clone(),
            secrets,
            migrated,
        };
        self.may_begin()?;
        match self.csi.unpublish(request).await {
            Ok(()) => Ok(turn),
            // A volume or node that the driver does not know holds nothing; the CSI specification leaves
            // NOT_FOUND to drivers that cannot tell. Waiting for another answer would block the pod. Without
            // the Secret, INVALID_ARGUMENT may be about that.
            Err(error)
                if error.code.is_not_found() || missing.is_none() && error.code.is_unknown_object() =>
            {
                tracing::info!(%error, "the driver knows nothing of it");
                Ok(turn)
            }
            Err(error) => Err(failed_without(missing, &error)),
        }
    }

    /// What a call that failed did all the same, perhaps, is undone if nobody is left to do so one day.
    async fn undo_if_departed(&self, attachment: &Attachment, plan: &AttachPlan, error: &CallError) {
        let is_there = || {
            let engine = self.engine();
            let newest = engine.attachment(&attachment.name);
            newest.is_some_and(|newest| newest.uid == attachment.uid)
        };
        let may_have_been_done = match error.reach {
            Reach::Answered | Reach::Interrupted => error.class() != Class::Final,
            Reach::Unsent | Reach::Withheld => false,
        };
        if may_have_been_done && !is_there() {
            Box::pin(self.undo_orphan(attachment, plan)).await;
        }
    }

    /// Somebody took our finalizer off while the call was under way, and the attachment is gone: with
    /// nobody left to detach it, the publish would stay for ever. One attempt is all that can be made, in the
    /// turn of the attach.
    async fn undo_orphan(&self, attachment: &Attachment, plan: &AttachPlan) {
        let secrets = self.secrets(plan.secret.as_ref()).await.unwrap_or_default();
        match self.engine().held_besides(attachment, &plan.target) {
            // Whoever leaves may rely on this very attachment.
            Held::ByNobody | Held::ByLeaving => {}
            Held::ByUnguarded | Held::ByLiving => return,
        }
        tracing::warn!("the VolumeAttachment vanished during its attach; unpublishing again");
        let request = UnpublishRequest {
            target: plan.target.clone(),
            secrets,
            migrated: plan.migrated,
        };
        if let Err(error) = self.csi.unpublish(request).await {
            tracing::error!(
                volume = %plan.target.handle,
                node_id = %plan.target.node_id,
                %error,
                "the volume stays published without a VolumeAttachment"
            );
        }
    }
}

/// The answer of an earlier run, if it answers what this run would ask.
fn known(answer: Option<Answer>, plan: &AttachPlan) -> Option<BTreeMap<String, String>> {
    match answer {
        Some(Answer::Published { target, context })
            if target == plan.target && plan.record.is_none() && plan.stale.is_none() =>
        {
            Some(context)
        }
        Some(Answer::Published { .. } | Answer::Unpublished) | None => None,
    }
}
