//! The machine's inputs: the newest objects and the progress of each sync.

use std::sync::Arc;
use std::time::Instant;

use super::{ControllerState, Key};
use crate::model::{Attachment, PublishTarget, Uid};
use crate::plan::{
    self, AttachInputs, Command, Next, OtherAttachment, Progress, PublishEnd, Stop, Subject, SyncContext,
    TargetUsage, UnpublishResult, View,
};

// === impl ControllerState ===

impl ControllerState {
    pub(crate) fn next(&mut self, subject: &Subject, context: SyncContext<'_>) -> Next {
        let mut inputs = match subject {
            Subject::Attachment(_, attachment) => self.newest_inputs(attachment),
            // Its own VolumeAttachment counts as another one.
            Subject::Orphan(orphan) => Some(self.inputs(&Arc::new(Attachment {
                uid: orphan.uid(),
                ..(*orphan.attachment).clone()
            }))),
        };
        let orphan = match subject {
            Subject::Attachment(..) => None,
            Subject::Orphan(orphan) => Some(&orphan.target),
        };
        let operation = inputs
            .as_ref()
            .and_then(|inputs| self.operation(&inputs.attachment));
        let mut progress = std::mem::take(self.progress(subject));
        // Other users of the volume are found by its handle, too.
        if let Some(inputs) = inputs.as_mut().filter(|inputs| inputs.volume.is_none()) {
            inputs.volume = progress.sync.volume.clone().flatten();
        }
        // The store has the one that published the orphan.
        if let Subject::Orphan(orphan) = subject {
            progress.sync.is_attachment_read |= self.newest_inputs(&orphan.attachment).is_some();
        }
        if let Some(inputs) = &inputs {
            let target = || Some(plan::detach(inputs, context.driver).ok()?.target);
            self.evidence.earlier_call(&inputs.attachment.uid, target);
        }
        let view = View {
            context,
            subject,
            operation: operation.map(|(operation, _)| operation),
            others: inputs
                .as_ref()
                .map(|inputs| self.others(inputs, orphan))
                .unwrap_or_default(),
            inputs,
            orphans: &self.orphans,
            evidence: &self.evidence,
            connection: self.connection,
        };
        progress.expire(&view);
        let next = plan::next(&view, &progress, self.queue.now);
        if let Next::Lock(_) = next {
            // Others may publish until the locks are acquired.
            progress.sync.unpublished.clear();
        }
        *self.progress(subject) = progress;
        if let Subject::Orphan(orphan) = subject {
            let waits = matches!(next, Next::Stop(Stop::AmbiguousNodeId(_)));
            let decides = match &next {
                Next::Lock(_) => false,
                Next::Act(commands) => commands.iter().any(Command::is_call),
                Next::Done | Next::Stop(_) => true,
            };
            if waits {
                self.waiting_orphans.insert(orphan.target.clone());
            } else if decides {
                self.waiting_orphans.remove(&orphan.target);
            }
        }
        next
    }

    pub(crate) fn progress(&mut self, subject: &Subject) -> &mut Progress {
        match subject {
            Subject::Attachment(_, attachment) => &mut self.state_of(&attachment.uid).progress,
            Subject::Orphan(orphan) => self.orphan_progress.entry(orphan.target.clone()).or_default(),
        }
    }

    /// Other VolumeAttachments of the volumes that the subject may be published of, by handle, independent of the names of their
    /// objects. One whose handle is unknown is assumed to have that of the subject if both name the same PersistentVolume.
    fn others(&self, inputs: &AttachInputs, orphan: Option<&PublishTarget>) -> Vec<OtherAttachment<'_>> {
        let attachment = &inputs.attachment;
        let volume = inputs.volume.as_ref().and_then(|volume| volume.spec.csi());
        let recorded = self.index.handle(attachment);
        let handles = [
            orphan.map(|target| &target.volume_id),
            recorded,
            volume.map(|csi| &csi.handle),
        ];
        let mut handles: Vec<_> = handles.into_iter().flatten().collect();
        handles.sort_unstable();
        handles.dedup();
        let of_handles = handles.iter().flat_map(|handle| self.index.of_handle(handle));
        let same_volume = attachment
            .volume_name()
            .map(|volume| self.index.of_volume(volume));
        let same_volume = same_volume.into_iter().flatten();
        let of_unknown_handle = same_volume.filter(|other| self.index.handle(other).is_none());
        of_handles
            .chain(of_unknown_handle)
            .filter(|other| other.uid != attachment.uid)
            .map(|other| self.other(other))
            .collect()
    }

    fn other<'s>(&'s self, other: &'s Arc<Attachment>) -> OtherAttachment<'s> {
        let known = self
            .attachment_states
            .get(&other.uid)
            .map(|known| &known.progress);
        let key = Key::Attachment(other.name.clone());
        OtherAttachment {
            attachment: other,
            handle: self.index.handle(other),
            present_id: self.index.node_id(&other.node),
            is_record_uncertain: known.is_some_and(|known| known.is_record_uncertain),
            may_be_attached: other.attached
                || known.is_some_and(|known| known.published.is_some())
                || self.queue.is_running(&key),
        }
    }

    /// Whether another VolumeAttachment may have the target published.
    pub(in crate::controller) fn is_used_by_another(
        &self,
        attachment: &Arc<Attachment>,
        target: &PublishTarget,
    ) -> bool {
        let inputs = self.inputs(attachment);
        let others = self.others(&inputs, Some(target));
        !matches!(
            plan::target_usage(attachment, target, false, &others),
            TargetUsage::No | TargetUsage::Idle
        )
    }

    /// A publish call for the target begins. Returns the number of the connection.
    pub(crate) fn publish_begins(&mut self, uid: &Uid, target: &PublishTarget) -> u64 {
        self.evidence.publish_begins(uid, target);
        self.connection
    }

    pub(crate) fn publish_ended(&mut self, uid: &Uid, end: PublishEnd) {
        self.evidence.publish_ended(uid, end, self.queue.now);
    }

    pub(crate) fn unpublish_ended(
        &mut self,
        subject: &Subject,
        target: &PublishTarget,
        session: Instant,
        result: UnpublishResult,
    ) {
        self.evidence
            .answered(&subject.uid(), target, session, result, self.queue.now);
        self.progress(subject)
            .sync
            .unpublished
            .push((target.clone(), result));
    }
}

#[cfg(test)]
mod tests;
