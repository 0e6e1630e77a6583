//! Attach: store, publish, tell.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::sync_error::Failure;
use super::{Controller, unread, unwritten};
use crate::controller::state::PendingStatusWrite;
use crate::csi::{CallError, ControllerClient, PublishRequest};
use crate::kube_api::{Cluster, Error, Released, Secrets};
use crate::model::{Attachment, Capabilities, Driver, Volume};
use crate::plan::{self, AttachInputs, AttachPlan, Operation, Record};

/// How a volume is to be attached.
enum Way {
    /// Not at all: its attachment is gone, or being deleted.
    Unwanted,
    /// The driver has no calls to publish volumes.
    WithoutCall(Arc<Attachment>),
    /// By this plan.
    ByCall(Box<Planned>),
}

/// An attach, as it was planned from what was known at that moment.
struct Planned {
    attachment: Arc<Attachment>,
    plan: AttachPlan,
    capabilities: Capabilities,
    /// The PersistentVolume, if the index does not have it.
    read: Option<Arc<Volume>>,
}

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Attaches the volume, or takes up where an earlier run left off; also an attachment that is attached
    /// already, as far as its status knows, and is to be repaired.
    pub(super) async fn attach(
        &self,
        facts: AttachInputs,
        answer: Option<PendingStatusWrite>,
    ) -> Result<(), Failure> {
        if answer == Some(PendingStatusWrite::Listed) {
            return Box::pin(self.clear_error(&facts.attachment)).await;
        }
        let answer = answer.filter(|answer| matches!(answer, PendingStatusWrite::Published { .. }));
        let mut planned = match Box::pin(self.plan_attach(facts, answer.is_some())).await {
            Ok(Way::Unwanted) => return Ok(()),
            Ok(Way::WithoutCall(attachment)) => {
                return Box::pin(self.unless_draining(self.attach_without_call(&attachment))).await;
            }
            Ok(Way::ByCall(planned)) => planned,
            // Nobody was called, so what is known from the last time still holds.
            Err(failure) => return Err(Failure { answer, ..failure }),
        };
        let attachment = &planned.attachment.clone();
        if self.state().is_node_id_update_pending(attachment) {
            // Written once more, the record is one to rely on again.
            planned.plan.record.get_or_insert_with(|| Record {
                annotations: attachment.recorded.clone(),
                whole: true,
            });
        }
        let (context, _turn) = match known(answer, &planned.plan) {
            // To write down an answer is no call, and goes on while we are winding up.
            Some(context) => (
                context,
                Box::pin(self.target_mutexes.lock(&planned.plan.target)).await,
            ),
            None => {
                // In boxes, so that an attach that waits for the driver does not take their room.
                let prepared = Box::pin(self.prepare(attachment, &planned.plan)).await?;
                let Some(secrets) = prepared else {
                    return Ok(());
                };
                let turn = Box::pin(self.lock_target(&planned.plan.target)).await?;
                self.check_draining()?;
                if !self.revalidate(&planned)? {
                    return Ok(());
                }
                match Box::pin(self.publish(&planned.plan, secrets.clone())).await {
                    Ok(context) => (context, turn),
                    Err(error) => {
                        self.undo_if_departed(attachment, &planned.plan, &error).await;
                        drop(turn);
                        Box::pin(self.publish_elsewhere(attachment, &mut planned.plan, secrets, error))
                            .await?
                    }
                }
            }
        };
        self.verify_target(&planned)?;
        Box::pin(self.mark_attached(attachment, &planned.plan, context)).await
    }

    /// Waits for the driver, and plans the attach by what is known then. Whoever has its `answered` call still to
    /// write down does not wait for the driver, and does so while we are winding up, too.
    async fn plan_attach(&self, facts: AttachInputs, answered: bool) -> Result<Way, Failure> {
        let capabilities = self.state().capabilities().filter(|_| answered);
        let driver = match capabilities {
            Some(capabilities) => Driver {
                capabilities,
                ..self.driver.clone()
            },
            None => self.unless_draining(self.driver()).await?,
        };
        let newest = self.state().facts(&facts.attachment);
        let Some(facts) = newest.filter(|facts| !facts.attachment.deleting) else {
            return Ok(Way::Unwanted);
        };
        let attachment = facts.attachment.clone();
        if !driver.capabilities.publish {
            return Ok(Way::WithoutCall(attachment));
        }
        let is_known = facts.volume.is_some();
        let facts = if answered {
            self.with_volume(facts).await?
        } else {
            self.unless_draining(self.with_volume(facts)).await?
        };
        let plan = match plan::attach(&facts, &driver) {
            Ok(plan) => plan,
            Err(refusal) => {
                self.guard(&attachment).await?;
                return Err(Failure::refused(&refusal));
            }
        };
        let planned = Planned {
            attachment,
            plan,
            capabilities: driver.capabilities,
            read: facts.volume.filter(|_| !is_known),
        };
        Ok(Way::ByCall(planned.into()))
    }

    /// What is known of a planned attach by now, and what would be planned from it.
    fn replan(&self, planned: &Planned) -> Result<Option<(Arc<Attachment>, AttachPlan)>, Failure> {
        let newest = self.state().facts(&planned.attachment);
        let Some(facts) = newest.filter(|facts| !facts.attachment.deleting) else {
            return Ok(None);
        };
        let facts = AttachInputs {
            volume: facts.volume.or_else(|| planned.read.clone()),
            ..facts
        };
        let driver = Driver {
            capabilities: planned.capabilities,
            ..self.driver.clone()
        };
        let plan = plan::attach(&facts, &driver).map_err(|refusal| Failure::refused(&refusal))?;
        Ok(Some((facts.attachment, plan)))
    }

    /// To be asked before the call, in its turn: whether the attachment is still wanted. A plan that would be
    /// another one by now, after all the waits since it was made, fails: by what is known now the node has another
    /// id, say, and the volume would be published to another machine, or its PersistentVolume is to go.
    fn revalidate(&self, planned: &Planned) -> Result<bool, Failure> {
        let Some((attachment, now)) = self.replan(planned)? else {
            return Ok(false);
        };
        let plan = &planned.plan;
        let is_recorded = attachment.finalizer
            && now
                .record
                .as_ref()
                .is_none_or(|record| attachment.recorded.is_at_one_with(&record.annotations));
        let is_claimed = now.claim.is_none() || now.claim == plan.claim;
        let goes_there = |plan: &AttachPlan| {
            (
                plan.target.clone(),
                plan.other_node_id.clone(),
                plan.secret.clone(),
            )
        };
        if !is_recorded || !is_claimed || goes_there(&now) != goes_there(plan) {
            return Err(Failure::outdated());
        }
        Ok(true)
    }

    /// To be asked before the status tells of the publish. Until then nobody uses the volume, so if it belongs
    /// elsewhere by now, the next attempt undoes the publish before it makes another.
    fn verify_target(&self, planned: &Planned) -> Result<(), Failure> {
        match self.replan(planned) {
            Ok(Some((_, now))) if now.target != planned.plan.target => Err(Failure::outdated()),
            // Of whom nothing is wanted any more there is nothing to plan. He is told what was done when it was.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The driver has no calls to publish volumes, so wherever one is wanted, it is there. What an
    /// earlier version of the driver made us put on the attachment comes off, but for the record of its
    /// publish call: should the driver have calls again, that volume is still to be unpublished.
    async fn attach_without_call(&self, attachment: &Attachment) -> Result<(), Failure> {
        if !attachment.attached {
            let marked = self.cluster.mark_attached(attachment, &BTreeMap::new()).await;
            if self
                .taken_in(attachment, marked, "failed to mark as attached", |_| ())?
                .is_none()
            {
                return Ok(());
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
            let wanted = Box::pin(self.unless_draining(self.is_still_wanted(attachment))).await?;
            if !wanted {
                return Ok(None);
            }
            elsewhere = Some(self.undo(attachment, stale, plan.migrated).await?);
        }
        let prepare = async {
            if !Box::pin(self.tell_of_move(attachment, plan)).await? {
                return Ok(None);
            }
            let secrets = self.secrets(plan.secret.as_ref()).await;
            let secrets = secrets.map_err(|(reference, error)| unread(&reference, &error))?;
            // Each to its end, whatever becomes of the other: a write that is given up on its way would be
            // sent again at each retry.
            let claim = Box::pin(self.claim(plan.claim.as_ref()));
            let record = Box::pin(self.record(attachment, plan.record.as_ref()));
            let (claimed, wanted) = futures::join!(claim, record);
            if !wanted? {
                return Ok(None);
            }
            claimed?;
            Ok(Some(secrets))
        };
        let prepared = self.unless_draining(Box::pin(prepare)).await;
        // Nobody waits for a turn while he has one, or two might wait for each other.
        drop(elsewhere);
        prepared
    }

    /// Stores our finalizer and the record of the call. Says whether the attachment is still wanted.
    pub(super) async fn record(
        &self,
        attachment: &Attachment,
        record: Option<&Record>,
    ) -> Result<bool, Failure> {
        let Some(record) = record else { return Ok(true) };
        if attachment.finalizer && !attachment.recorded.is_at_one_with(&record.annotations) {
            self.state().node_id_update_begins(attachment);
        }
        let newest = self.cluster.record(attachment, record).await;
        let seen = self.taken_in(attachment, newest, "could not save VolumeAttachment", |newest| {
            let stored = newest.finalizer && newest.recorded.is_at_one_with(&record.annotations);
            (!newest.deleting, stored)
        })?;
        let Some((wanted, stored)) = seen else {
            return Ok(false);
        };
        if wanted && !stored {
            // What is called for by another record would be undone elsewhere one day.
            return Err(Failure::misrecorded());
        }
        self.state().node_id_update_ends(attachment);
        Ok(wanted)
    }

    pub(super) async fn publish(
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

    /// The driver lists the volume where it should be, so the error in the status is outdated.
    async fn clear_error(&self, attachment: &Attachment) -> Result<(), Failure> {
        // A list has no publish context, so what the status has of one stays.
        let with_context = Attachment {
            metadata_keys: Box::default(),
            ..attachment.clone()
        };
        match self.cluster.mark_attached(&with_context, &BTreeMap::new()).await {
            Ok(written) => {
                self.written(written);
                self.announce_recovery(Operation::Attach, attachment);
                Ok(())
            }
            Err(error) if error.is_gone() => {
                self.departed(attachment);
                Ok(())
            }
            Err(error) => Err(Failure {
                told: false,
                ..unwritten(
                    "failed to clear the attach error",
                    &error,
                    PendingStatusWrite::Listed,
                )
            }),
        }
    }

    async fn mark_attached(
        &self,
        attachment: &Arc<Attachment>,
        plan: &AttachPlan,
        context: BTreeMap<String, String>,
    ) -> Result<(), Failure> {
        match self.cluster.mark_attached(attachment, &context).await {
            Ok(written) => {
                self.written(written);
                // One that was attached before was only repaired: nobody waited since its creation.
                if !attachment.attached {
                    self.reached(Operation::Attach, attachment);
                }
                tracing::debug!(volume = %plan.target.volume_id, node_id = %plan.target.node_id, "attached");
                self.announce_recovery(Operation::Attach, attachment);
                Ok(())
            }
            Err(error) if error.is_gone() => {
                self.departed(attachment);
                self.undo_orphan(attachment, plan).await;
                Ok(())
            }
            // If the API server will never take this answer (a context that is too large, say), people must know,
            // and the driver is asked for another one.
            Err(error) if error.is_refusal() => Err(Failure::api("failed to mark as attached", &error)),
            // The volume is attached, and its status will say so as soon as it can be written.
            Err(error) => {
                let answer = PendingStatusWrite::Published {
                    target: plan.target.clone(),
                    context,
                };
                // That we may not write is no fault of this attachment's, and the log shows it.
                let told =
                    matches!(error, Error::Refused { status: 400..=499, .. } if !error.is_unauthorized());
                Err(Failure {
                    told,
                    ..unwritten("failed to mark as attached", &error, answer)
                })
            }
        }
    }
}

/// The answer of an earlier run, if it answers what this run would ask.
fn known(answer: Option<PendingStatusWrite>, plan: &AttachPlan) -> Option<BTreeMap<String, String>> {
    match answer {
        Some(PendingStatusWrite::Published { target, context })
            if target == plan.target && plan.record.is_none() && plan.stale.is_none() =>
        {
            Some(context)
        }
        Some(
            PendingStatusWrite::Published { .. }
            | PendingStatusWrite::Unpublished
            | PendingStatusWrite::Listed,
        )
        | None => None,
    }
}
