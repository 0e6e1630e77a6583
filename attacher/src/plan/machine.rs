//! The machine: what one VolumeAttachment, or one orphan, needs next. It decides from the newest objects and from [`Progress`]
//! alone; the controller executes its commands. docs/architecture.md has it as a table.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    AttachInputs, AttachPlan, Command, Decision, DetachPlan, Evidence, Next, Operation, Orphan,
    OtherAttachment, Progress, Proof, PvFinalizer, Record, Refusal, Stop, Subject, TargetEvidence,
    TargetUsage, Unproven, UnpublishResult, View, attach, decide, detach, target_usage,
};
use crate::model::{Attachment, Capabilities, Driver, PublishTarget, SecretRef};

/// A value, or what must happen before it is known.
type Step<T> = Result<T, Next>;

struct Machine<'m> {
    view: &'m View<'m>,
    progress: &'m Progress,
    now: Instant,
}

/// What `view.subject` needs next.
pub(crate) fn next(view: &View<'_>, progress: &Progress, now: Instant) -> Next {
    let Some(inputs) = view.inputs.as_ref().filter(|_| !progress.sync.is_done) else {
        return Next::Done;
    };
    let machine = Machine { view, progress, now };
    let step = match view.subject {
        Subject::Attachment(Operation::Attach, before) => machine.attach(inputs, before),
        Subject::Attachment(Operation::Detach, _) => machine.detach(inputs),
        Subject::Orphan(orphan) => machine.orphan(orphan, inputs),
    };
    step.unwrap_or_else(|next| next)
}

fn act(command: Command) -> Next {
    Next::Act(vec![command])
}

// === impl Machine ===

impl Machine<'_> {
    fn attach(&self, inputs: &AttachInputs, before: &Attachment) -> Step<Next> {
        let attachment = &inputs.attachment;
        // The detach is an item of its own.
        if attachment.deleting {
            return Ok(Next::Done);
        }
        // Also if the status says attached: a late write of an earlier attach may have stored the context of its publish.
        if let Some(published) = &self.progress.published {
            self.lock([&published.target])?;
            return Ok(act(Command::MarkAttached(Some(published.clone()))));
        }
        // The response to an earlier status write may have been lost.
        if attachment.attached && !before.attached {
            return Ok(Next::Done);
        }
        let capabilities = self.connected()?;
        if !capabilities.publish {
            return Ok(without_publish_calls(attachment));
        }
        let driver = Driver {
            capabilities,
            ..self.view.context.driver.clone()
        };
        let plan = match attach(inputs, &driver) {
            Ok(plan) => plan,
            Err(Refusal::VolumeNotFound(name)) if self.progress.sync.volume.is_none() => {
                return Ok(act(Command::GetVolume(name)));
            }
            Err(refusal) => {
                return Ok(match Record::for_detach(inputs, &driver) {
                    Some(record) => act(Command::Record(record)),
                    None => Next::Stop(Stop::Refused(refusal)),
                });
            }
        };
        // The locks are held until the record is overwritten: until then other detaches may leave the target to this one.
        if let Some(former) = &plan.former {
            self.undo(former, &plan, attachment)?;
        }
        // Without the Secret a detach may fail, too, and a VolumeAttachment without our finalizer can be deleted without one.
        if let Some(secret) = &plan.secret {
            self.secret(secret, true)?;
        }
        let mut writes = Vec::new();
        let lacks =
            |finalizer: &PvFinalizer| self.progress.sync.pv_finalizer.as_ref() != Some(&finalizer.uid);
        writes.extend(
            plan.pv_finalizer
                .clone()
                .filter(lacks)
                .map(Command::AddPvFinalizer),
        );
        let uncertain = self
            .progress
            .is_record_uncertain
            .then(|| Record::again(attachment));
        writes.extend(plan.record.clone().or(uncertain).map(Command::Record));
        if !writes.is_empty() {
            return Ok(Next::Act(writes));
        }
        // Nothing of a deleted VolumeAttachment may be published: no detach would follow.
        if !self.progress.is_confirmed {
            return Ok(act(Command::GetAttachment));
        }
        self.lock([&plan.target])?;
        Ok(act(Command::Publish(Box::new(plan))))
    }

    /// Unpublishes what an earlier attach published elsewhere. If the driver does not know that target, it becomes an orphan:
    /// waiting for a proof would block the pod, and the driver refuses a second node where it matters. The orphan exists before
    /// the record is overwritten, whose response may be lost.
    fn undo(&self, former: &DetachPlan, plan: &AttachPlan, attachment: &Arc<Attachment>) -> Step<()> {
        if !self.progress.sync.is_attachment_read {
            return Err(act(Command::GetAttachment));
        }
        let target = &former.target;
        if target.with_volume(&plan.target.volume_id) != *target {
            return self.prove(attachment, former, true).map(|_| ());
        }
        self.detach_secret(former)?;
        // The present target, which is published next, may name the same machine.
        self.lock([target, &plan.target])?;
        let is_unknown = matches!(
            self.unpublish(attachment, former, target, false)?.result,
            UnpublishResult::NotFound | UnpublishResult::InvalidArgument
        );
        let kept = self.view.orphans.get(target);
        if is_unknown && kept.is_none_or(|kept| kept.attachment.uid != attachment.uid) {
            return Err(act(Command::KeepOrphan(Orphan {
                target: target.clone(),
                secret: former.secret.clone(),
                migrated: former.migrated,
                attachment: attachment.clone(),
            })));
        }
        Ok(())
    }

    fn detach(&self, inputs: &AttachInputs) -> Step<Next> {
        let attachment = &inputs.attachment;
        let (progress, sync) = (self.progress, &self.progress.sync);
        if self.view.operation != Some(Operation::Detach) {
            return Ok(Next::Done);
        }
        if let Some(proof) = &progress.proof {
            return Ok(release(attachment, Some(proof)));
        }
        // Without our finalizer the object may have been replaced by a successor that is attached.
        if !attachment.finalizer && !sync.is_attachment_read {
            return Ok(act(Command::GetAttachment));
        }
        let capabilities = self.connected()?;
        // With a recorded handle the PersistentVolume is not needed. It may have been deleted long ago.
        if attachment.recorded.handle.is_none()
            && inputs.volume.is_none()
            && sync.volume.is_none()
            && let Some(name) = attachment.volume_name()
        {
            return Ok(act(Command::GetVolume(name.clone())));
        }
        let may_be_published = attachment.finalizer || attachment.recorded.node_id.is_some();
        let plan = match detach(inputs, self.view.context.driver) {
            // `attached: true` without our finalizer: the volume may be published.
            Err(refusal) if may_be_published || capabilities.publish && attachment.attached => {
                return Ok(Next::Stop(Stop::Refused(refusal)));
            }
            Ok(plan) if capabilities.publish || may_be_published => plan,
            // It was never published.
            Ok(_) | Err(_) => return Ok(release(attachment, None)),
        };
        let proof = self.prove(attachment, &plan, capabilities.publish)?;
        match proof.is_by_answers() {
            true => Ok(act(Command::KeepProof(proof))),
            false => Ok(release(attachment, Some(&proof))),
        }
    }

    /// The VolumeAttachment that published the target counts as another one: it may use the volume on the same machine under
    /// another id, or have been revived.
    fn orphan(&self, orphan: &Orphan, inputs: &AttachInputs) -> Step<Next> {
        let capabilities = self.connected()?;
        // A stray DELETED event, or a list of a proxy, must not take the volume from a pod.
        if !self.progress.sync.is_attachment_read {
            return Ok(act(Command::GetAttachment));
        }
        let plan = orphan.plan(inputs.node.as_deref());
        self.prove(&inputs.attachment, &plan, capabilities.publish)?;
        Ok(act(Command::EndOrphan))
    }

    /// The proof that all targets of `plan` are unpublished: the recorded node id, and the node's present id where it differs,
    /// as the node may be the same machine under another id, and a driver may answer OK for an id that it no longer knows.
    fn prove(&self, attachment: &Attachment, plan: &DetachPlan, has_calls: bool) -> Step<Proof> {
        let view = self.view;
        let mut evidence = Evidence {
            uid: &attachment.uid,
            plan,
            recorded: TargetEvidence::of(UnpublishResult::NoPublishCalls),
            present: None,
            is_node_confirmed_gone: self.progress.sync.node_exists == Some(false),
            assume_after: view.context.assume_after,
            session_age: view.context.session.map_or(Duration::ZERO, |opened| {
                self.now.saturating_duration_since(opened)
            }),
        };
        if !has_calls {
            // The driver is most likely restarting wrongly, so the operator's word alone counts.
            let Decision::Released(proof) = decide(&evidence) else {
                return Err(Next::Stop(Stop::NoPublishCalls));
            };
            return Ok(proof);
        }
        self.detach_secret(plan)?;
        let present = plan.present_target();
        // Both at once: a publish under the present id may be of the same machine as the recorded one.
        self.lock(std::iter::once(&plan.target).chain(&present))?;
        evidence.recorded = self.unpublish(attachment, plan, &plan.target, false)?;
        loop {
            match (decide(&evidence), &present) {
                (Decision::Released(proof), _) => return Ok(proof),
                (Decision::UnpublishPresent, Some(present)) => {
                    evidence.present = Some(self.unpublish(attachment, plan, present, true)?);
                }
                (Decision::ConfirmNodeGone, _) if self.progress.sync.node_exists.is_none() => {
                    return Err(act(Command::GetNode(attachment.node.clone())));
                }
                (Decision::ConfirmNodeGone | Decision::Unproven, _) => {
                    return Err(Next::Stop(Stop::Unproven(Box::new(Unproven {
                        plan: plan.clone(),
                        node_ids: evidence.unproven_ids(),
                    }))));
                }
                (Decision::Retry | Decision::UnpublishPresent, _) => return Err(Next::Stop(Stop::Failed)),
            }
        }
    }

    /// The result of the unpublish of one target, whose lock keeps others from publishing there until the proof is used.
    fn unpublish(
        &self,
        attachment: &Attachment,
        plan: &DetachPlan,
        target: &PublishTarget,
        is_present: bool,
    ) -> Step<TargetEvidence> {
        let is_undo = self.view.subject.operation() == Some(Operation::Attach);
        let unpublished = &self.progress.sync.unpublished;
        let answer = unpublished.iter().rfind(|(asked, _)| asked == target);
        let usage = target_usage(attachment, target, is_present, &self.view.others);
        let of = |other| target_usage(attachment, target, is_present, std::slice::from_ref(other));
        let others = self.view.others.iter().filter(|other| of(other) == usage);
        let is_unread =
            |other: &&OtherAttachment<'_>| !self.progress.sync.others_read.contains(&other.attachment.uid);
        // The store may be late: the other VolumeAttachment may have been deleted without a detach, or be attached by now.
        let unread = match usage {
            // One that uses the target suffices.
            TargetUsage::Yes => others
                .clone()
                .next()
                .filter(|_| others.clone().all(|other| is_unread(&other))),
            TargetUsage::Idle => others.clone().find(is_unread),
            TargetUsage::No | TargetUsage::Wait(_) => None,
        };
        if let Some(other) = unread {
            return Err(act(Command::GetOther(other.attachment.name.clone())));
        }
        let lists_prove = || {
            let evidence = self
                .view
                .evidence
                .about(&attachment.uid, target, UnpublishResult::Waits);
            matches!(self.view.subject, Subject::Orphan(_)) && evidence.lists.is_proof()
        };
        let result = match usage {
            TargetUsage::Yes => UnpublishResult::InUse,
            TargetUsage::Wait(Stop::AmbiguousNodeId(_)) if lists_prove() => UnpublishResult::Waits,
            TargetUsage::Wait(stop) => return Err(Next::Stop(stop)),
            TargetUsage::No | TargetUsage::Idle => match answer {
                Some((_, result)) => *result,
                // The status write of the earlier attach may be late.
                None if is_undo && !self.progress.sync.is_undo_saved => {
                    return Err(act(Command::SaveUndoError(target.clone())));
                }
                None => {
                    return Err(act(Command::Unpublish {
                        target: target.clone(),
                        secret: plan.secret.clone(),
                        recorded_secret: plan.recorded_secret.clone(),
                        migrated: plan.migrated,
                    }));
                }
            },
        };
        Ok(self.view.evidence.about(&attachment.uid, target, result))
    }

    fn connected(&self) -> Step<Capabilities> {
        let driver = self.progress.sync.driver.as_ref();
        driver
            .map(|(_, capabilities)| *capabilities)
            .ok_or_else(|| act(Command::Connect))
    }

    fn secret(&self, secret: &SecretRef, is_required: bool) -> Step<()> {
        match self.progress.sync.secret(secret) {
            Some(content) if content.is_some() || !is_required => Ok(()),
            Some(_) | None => Err(act(Command::GetSecret {
                secret: secret.clone(),
                is_required,
            })),
        }
    }

    /// Reads the Secrets of a detach, up to the first that can be read.
    fn detach_secret(&self, plan: &DetachPlan) -> Step<()> {
        for secret in plan.secrets() {
            self.secret(secret, false)?;
            if self.progress.sync.secret(secret).is_some_and(Option::is_some) {
                break;
            }
        }
        Ok(())
    }

    fn lock<'t>(&self, targets: impl IntoIterator<Item = &'t PublishTarget>) -> Step<()> {
        let mut targets: Vec<_> = targets.into_iter().cloned().collect();
        if targets
            .iter()
            .all(|target| self.view.context.locked.contains(target))
        {
            return Ok(());
        }
        targets.sort_unstable();
        targets.dedup();
        Err(Next::Lock(targets))
    }
}

/// For a driver without publish calls. A VolumeAttachment with our finalizer or record may be published: the driver had the
/// calls, and most likely restarts wrongly.
fn without_publish_calls(attachment: &Attachment) -> Next {
    if attachment.attached {
        Next::Done
    } else if attachment.finalizer || attachment.recorded.node_id.is_some() {
        Next::Stop(Stop::NoPublishCalls)
    } else {
        act(Command::MarkAttached(None))
    }
}

/// The status first, if other finalizers keep the object: a crash in between repeats the detach. In the other order the status
/// would stay wrong.
fn release(attachment: &Attachment, proof: Option<&Proof>) -> Next {
    let outlives = attachment.foreign_finalizers || !attachment.finalizer;
    match proof {
        _ if outlives && attachment.has_attached_status() => act(Command::MarkDetached),
        Some(proof) if attachment.finalizer => act(Command::RemoveFinalizer(proof.clone())),
        Some(_) | None => Next::Done,
    }
}
