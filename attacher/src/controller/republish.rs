//! Attach to where a node is now: a machine that came back under another node id has its volumes there again.

use std::collections::BTreeMap;

use super::keyed_mutex::KeyedGuard;
use super::sync_error::{Failure, MESSAGE_BYTES, cut};
use super::{Controller, called};
use crate::controller::state::UsedBy;
use crate::csi::{CallError, ControllerClient, UnpublishRequest};
use crate::kube_api::{Cluster, Secrets, Side};
use crate::model::{Attachment, Problem, PublishTarget, Recorded};
use crate::plan::{AttachPlan, Record};
use crate::report::time;

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Tells in the status that an attached volume is about to be published again on a node that has another id
    /// today. Says whether the attachment is still wanted.
    ///
    /// Once the record names our finalizer and that id, nothing else that is stored tells a volume that is there from
    /// one that is nowhere, because the process died before its call. An error of somebody who is attached does, and
    /// gets him attached again; with success it goes.
    pub(super) async fn tell_of_move(
        &self,
        attachment: &Attachment,
        plan: &AttachPlan,
    ) -> Result<bool, Failure> {
        let Some(today) = plan
            .other_node_id
            .as_ref()
            .filter(|_| attachment.attach_error.is_none())
        else {
            return Ok(true);
        };
        let PublishTarget {
            volume_id: handle,
            node_id,
        } = &plan.target;
        let message = format!(
            "volume {handle:?} was published to node id {node_id:?}, and the node's id is {today:?} by now; \
             publishing it again"
        );
        let problem = Problem {
            time: time((self.clock)()),
            message: cut(&message, MESSAGE_BYTES).to_owned(),
            code: None,
        };
        let saved = self
            .cluster
            .save_problem(attachment, Side::Attach, &problem)
            .await;
        let wanted = self.taken_in(attachment, saved, "could not save VolumeAttachment", |newest| {
            !newest.deleting
        })?;
        Ok(wanted.unwrap_or(false))
    }

    /// The driver does not know the node by the id under which the volume was published: the machine
    /// came back under another one, and is to have its volume again.
    ///
    /// The record moves in both turns. In the old one, since others may leave the volume there to this attachment
    /// until then; in the new one, since from then on its status, which never ceased to say so, says that it is
    /// attached there, and a detach that began earlier would still take it away.
    pub(super) async fn publish_elsewhere<'t>(
        &'t self,
        attachment: &Attachment,
        plan: &mut AttachPlan,
        secrets: Secrets,
        error: CallError,
    ) -> Result<(BTreeMap<String, String>, KeyedGuard<'t, PublishTarget>), Failure> {
        let Some(node_id) = plan
            .other_node_id
            .take()
            .filter(|_| error.code.is_unknown_object())
        else {
            return Err(called(&error));
        };
        tracing::info!(%error, %node_id, "the driver does not know the recorded node id; trying today's");
        let today = PublishTarget {
            node_id: node_id.clone(),
            ..plan.target.clone()
        };
        let turns = async { Ok(self.target_mutexes.lock_both(&plan.target, &today).await) };
        let (there, here) = self.unless_draining(turns).await?;
        self.is_still_at(attachment, &today)?;
        self.leave(attachment, plan, secrets.clone(), &error).await?;
        self.is_still_at(attachment, &today)?;
        let recorded = plan.record.as_ref().map(|record| &record.annotations);
        let annotations = Recorded {
            node_id: Some(node_id),
            ..recorded.unwrap_or(&attachment.recorded).clone()
        };
        plan.target = today;
        // Before the call, as always. That the volume is not there yet stands in the status.
        let record = Record {
            annotations,
            whole: true,
        };
        let record = self.record(attachment, Some(&record));
        if !self.unless_draining(record).await? {
            return Err(called(&error));
        }
        drop(there);
        self.check_draining()?;
        let published = self.publish(plan, secrets).await;
        let context = published.map_err(|error| called(&error))?;
        Ok((context, here))
    }

    /// Puts our finalizer on an attached VolumeAttachment that lost it and cannot be attached again as things stand (its
    /// PersistentVolume is gone, say): the record suffices to detach it, and detaches of the same volume wait for that.
    pub(super) async fn guard(&self, attachment: &Attachment) -> Result<(), Failure> {
        let Attachment { recorded, .. } = attachment;
        let is_recorded = recorded.node_id.is_some() && recorded.handle.is_some();
        if attachment.attached && !attachment.finalizer && is_recorded {
            let record = Record {
                annotations: recorded.clone(),
                whole: true,
            };
            Box::pin(self.unless_draining(self.record(attachment, Some(&record)))).await?;
        }
        Ok(())
    }

    /// Whether the node of `attachment` still has that id, after a wait or a call.
    fn is_still_at(&self, attachment: &Attachment, today: &PublishTarget) -> Result<(), Failure> {
        let facts = self.state().facts(attachment);
        let node = facts.and_then(|facts| facts.node);
        match node.is_some_and(|node| node.id.as_ref() == Some(&today.node_id)) {
            true => Ok(()),
            false => Err(Failure::outdated()),
        }
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
        if self.is_needed_at(attachment, &plan.target, UsedBy::Record)? {
            return Ok(());
        }
        self.check_draining()?;
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
}
