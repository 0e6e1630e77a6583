//! Attach to where a node is now: a machine that came back under another node id has its volumes there again.

use std::collections::BTreeMap;

use super::problem::Failure;
use super::turns::Turn;
use super::{Worker, called};
use crate::cluster::{Cluster, Secrets};
use crate::csi::{CallError, Controller, UnpublishRequest};
use crate::decide::{AttachPlan, Record};
use crate::model::{Attachment, Recorded, Target};

impl<K: Cluster, D: Controller> Worker<K, D> {
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
}
