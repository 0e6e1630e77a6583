//! Attach: store, publish, tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::problem::Failure;
use super::{Worker, called, unread, unwritten};
use crate::cluster::{Cluster, Error, Released, Secrets};
use crate::csi::{CallError, Controller, PublishRequest, UnpublishRequest};
use crate::decide::{self, AttachPlan, Facts, Record, Stale, Wanted};
use crate::engine::{Answer, Held};
use crate::model::{Attachment, Driver, Recorded};
use crate::report::chain;

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
        let context = match known(answer, &plan) {
            Some(context) => context,
            None => {
                if let Some(stale) = &plan.stale {
                    let wanted = Box::pin(self.unless_winding_up(self.is_still_wanted(attachment))).await?;
                    if !wanted {
                        return Ok(());
                    }
                    Box::pin(self.undo(attachment, stale, plan.migrated)).await?;
                }
                // In boxes, so that an attach that waits for the driver does not take their room.
                let prepared = Box::pin(self.prepare(attachment, &plan)).await?;
                let Some(secrets) = prepared else {
                    return Ok(());
                };
                self.may_begin()?;
                match Box::pin(self.publish(&plan, secrets.clone())).await {
                    Ok(context) => context,
                    Err(error) => {
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

    /// Everything that must be stored, and read, before the call. `None` if the attachment is not wanted
    /// any more. A failure leaves no finalizer of ours on an attachment that nothing was called for: it
    /// can be deleted at once, without the detach that would fail as this does.
    async fn prepare(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
    ) -> Result<Option<Secrets>, Failure> {
        let claim = self.claim(plan.claim.as_ref());
        let record = self.record(attachment, plan.record.as_ref());
        let read = async {
            self.secrets(plan.secret.as_ref())
                .await
                .map_err(|(reference, error)| unread(&reference, &error))
        };
        if attachment.attach_error.is_some() {
            // It failed before, maybe by this: to store and to undo the record each time would be two
            // writes a retry.
            let prepare = async {
                let ((), secrets) = futures::try_join!(claim, read)?;
                Ok(record.await?.then_some(secrets))
            };
            return self.unless_winding_up(prepare).await;
        }
        // At once, since none of it depends on the rest.
        let prepare = async { Ok(futures::join!(claim, record, read)) };
        let (claimed, recorded, secrets) = self.unless_winding_up(prepare).await?;
        let wanted = recorded?;
        match claimed.and(secrets) {
            Ok(secrets) => Ok(wanted.then_some(secrets)),
            Err(failure) => {
                if wanted && plan.record.is_some() && !attachment.finalizer {
                    self.unrecord(attachment).await;
                }
                Err(failure)
            }
        }
    }

    /// Takes our finalizer off again, which was put on for a call that is not made. Whoever calls this knows
    /// that there was none before, and so no call before.
    async fn unrecord(&self, attachment: &Attachment) {
        // The answer to the record may have shown what the watch had not told yet.
        let attached = match self.engine().attachment(&attachment.name) {
            Some(newest) if newest.uid == attachment.uid => newest.attached,
            Some(_) | None => return,
        };
        if attachment.attached || attached {
            return;
        }
        match self.cluster.release(attachment).await {
            Ok(Released::Kept(left)) => self.written(*left),
            Ok(Released::Gone) => self.departed(attachment),
            Err(error) if error.is_gone() => self.departed(attachment),
            Err(error) => tracing::warn!(
                error = chain(&error),
                "could not take our finalizer off an attachment that nothing was called for"
            ),
        }
    }

    /// Stores our finalizer and the record of the call. Says whether the attachment is still wanted.
    async fn record(&self, attachment: &Attachment, record: Option<&Record>) -> Result<bool, Failure> {
        let Some(record) = record else { return Ok(true) };
        match self.cluster.record(attachment, record).await {
            Ok(attachment) => {
                let wanted = !attachment.deleting;
                self.written(attachment);
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
    async fn publish_elsewhere(
        &self,
        attachment: &Attachment,
        plan: &mut AttachPlan,
        secrets: Secrets,
        error: CallError,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let Some(node_id) = plan
            .other_node_id
            .take()
            .filter(|_| error.code.is_unknown_object())
        else {
            return Err(called(&error));
        };
        tracing::info!(%error, %node_id, "the driver does not know the recorded node id; trying today's");
        let recorded = plan.record.as_ref().map(|record| &record.annotations);
        let annotations = Recorded {
            node_id: Some(node_id.clone()),
            ..recorded.unwrap_or(&attachment.recorded).clone()
        };
        plan.target.node_id = node_id;
        // Before the call, as always.
        let record = Record { annotations };
        let record = self.record(attachment, Some(&record));
        if !self.unless_winding_up(record).await? {
            return Err(called(&error));
        }
        self.may_begin()?;
        self.publish(plan, secrets).await.map_err(|error| called(&error))
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

    /// Unpublishes what an earlier attempt published elsewhere.
    async fn undo(&self, attachment: &Attachment, stale: &Stale, migrated: bool) -> Result<(), Failure> {
        if self.engine().held_besides(attachment, &stale.target) != Held::ByNobody {
            // The id is another node's by now, and the volume is in use there.
            return Ok(());
        }
        let read = async {
            self.secrets(stale.secret.as_ref())
                .await
                .map_err(|(reference, error)| unread(&reference, &error))
        };
        let secrets = self.unless_winding_up(read).await?;
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
            // A volume or node that the driver does not know holds nothing; the CSI specification leaves
            // NOT_FOUND to drivers that cannot tell. Waiting for another answer would block the pod.
            Err(error) if error.code.is_unknown_object() => {
                tracing::info!(%error, "the driver knows nothing of it");
                Ok(())
            }
            result => result.map_err(|error| called(&error)),
        }
    }

    /// Somebody took our finalizer off while the call was under way, and the attachment is gone: with
    /// nobody left to detach it, the publish would stay for ever. One attempt is all that can be made.
    async fn undo_orphan(&self, attachment: &Attachment, plan: &AttachPlan) {
        if self.engine().held_besides(attachment, &plan.target) != Held::ByNobody {
            return;
        }
        tracing::warn!("the VolumeAttachment vanished during its attach; unpublishing again");
        let secrets = self.secrets(plan.secret.as_ref()).await.unwrap_or_default();
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
