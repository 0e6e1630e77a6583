//! Which other VolumeAttachments use a publish target; [`plan::target_usage`] has the rule.

use std::sync::Arc;

use super::{ControllerState, Key, PendingStatusWrite};
use crate::model::{Attachment, PublishTarget};
use crate::plan::{OtherAttachment, TargetUsage, UsedBy, target_usage};

// === impl ControllerState ===

impl ControllerState {
    /// How VolumeAttachments besides `attachment` use `target`.
    pub fn usage_besides(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        used_by: UsedBy,
    ) -> TargetUsage {
        self.others_of_volume(attachment, &target.volume_id)
            .map(|other| self.usage_by(other, attachment, target, used_by))
            .max()
            .unwrap_or(TargetUsage::Unused)
    }

    /// Whether another VolumeAttachment has the volume attached to the node of `attachment`, under any node id, or is being
    /// attached, or is published and its status is not written yet.
    pub fn may_be_attached_on_node(&self, attachment: &Attachment, volume_id: &str) -> bool {
        self.others_of_volume(attachment, volume_id)
            .filter(|other| other.uid != attachment.uid && other.node == attachment.node && !other.deleting)
            .any(|other| {
                other.attached
                    || matches!(
                        self.pending(&other.uid),
                        Some(PendingStatusWrite::Published { .. })
                    )
                    || self.queue.is_running(&Key::Attachment(other.name.clone()))
            })
    }

    /// Enqueues an attach of all VolumeAttachments that use `target` without our finalizer, which adds it.
    pub fn restore_finalizers(&mut self, attachment: &Attachment, target: &PublishTarget, used_by: UsedBy) {
        let missing: Vec<_> = self
            .others_of_volume(attachment, &target.volume_id)
            .filter(|other| !other.finalizer && self.operation(other).is_none())
            .filter(|other| {
                self.usage_by(other, attachment, target, used_by) == TargetUsage::MissingFinalizer
            })
            .cloned()
            .collect();
        for other in missing {
            self.attach_again(&other);
        }
    }

    /// A write begins that changes the recorded target of `attachment`. Until its result is known, the stored record is
    /// uncertain: the response may be lost.
    pub fn node_id_update_begins(&mut self, attachment: &Attachment) {
        self.state_of(&attachment.uid).node_id_update_pending = true;
    }

    /// The stored record of `attachment` is certain again.
    pub fn node_id_update_ends(&mut self, attachment: &Attachment) {
        if let Some(known) = self.attachment_states.get_mut(&attachment.uid) {
            known.node_id_update_pending = false;
        }
    }

    /// Whether the stored record of `attachment` is uncertain.
    pub fn is_node_id_update_pending(&self, attachment: &Attachment) -> bool {
        self.attachment_states
            .get(&attachment.uid)
            .is_some_and(|known| known.node_id_update_pending)
    }

    fn usage_by(
        &self,
        other: &Attachment,
        attachment: &Attachment,
        target: &PublishTarget,
        used_by: UsedBy,
    ) -> TargetUsage {
        let node = self.index.node(&other.node);
        let other = OtherAttachment {
            attachment: other,
            present_id: node.and_then(|node| node.id.as_ref()),
            is_record_certain: !self.is_node_id_update_pending(other),
        };
        target_usage(attachment, target, used_by, other)
    }

    /// VolumeAttachments of the volume by its handle, whatever their objects are called. One whose handle is unknown is
    /// assumed to have that of `attachment` if both name the same PersistentVolume.
    fn others_of_volume<'e>(
        &'e self,
        attachment: &'e Attachment,
        volume_id: &'e str,
    ) -> impl Iterator<Item = &'e Arc<Attachment>> {
        let by_volume = attachment
            .volume_name()
            .map(|volume| self.index.attachments_of_volume(volume));
        let of_unknown_handle = by_volume
            .into_iter()
            .flatten()
            .filter_map(|name| self.index.attachment(name))
            .filter(|other| self.index.handle(other).is_none());
        self.index
            .attachments_of_handle(volume_id)
            .filter_map(|name| self.index.attachment(name))
            .chain(of_unknown_handle)
    }
}

#[cfg(test)]
mod tests;
