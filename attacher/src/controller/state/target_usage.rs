//! Finds other VolumeAttachments that use a publish target, by the rule of [`crate::plan::target_usage`].

use std::sync::Arc;

use super::{ControllerState, Key, PendingStatusWrite};
use crate::model::{Attachment, PublishTarget};
use crate::plan::{OtherAttachment, TargetUsage, UsedBy, target_usage};

// === impl ControllerState ===

impl ControllerState {
    /// How VolumeAttachments besides `attachment` use `target`.
    pub(crate) fn usage_besides(
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
    pub(crate) fn may_be_attached_on_node(&self, attachment: &Attachment, volume_id: &str) -> bool {
        self.others_of_volume(attachment, volume_id)
            .filter(|other| other.uid != attachment.uid && other.node == attachment.node && !other.deleting)
            .any(|other| {
                let known = self.attachment_states.get(&other.uid);
                let pending = known.and_then(|known| known.pending.as_ref());
                let is_published = matches!(pending, Some(PendingStatusWrite::Published { .. }));
                let key = Key::Attachment(other.name.clone());
                other.attached || is_published || self.queue.is_running(&key)
            })
    }

    fn usage_by(
        &self,
        other: &Attachment,
        attachment: &Attachment,
        target: &PublishTarget,
        used_by: UsedBy,
    ) -> TargetUsage {
        let node = self.index.nodes.get(&other.node);
        let known = self.attachment_states.get(&other.uid);
        let other = OtherAttachment {
            attachment: other,
            present_id: node.and_then(|node| node.id.as_ref()),
            is_record_certain: known.is_none_or(|known| !known.node_id_update_pending),
        };
        target_usage(attachment, target, used_by, other)
    }

    /// VolumeAttachments of the volume by its handle, independent of the names of their objects. One whose handle is
    /// unknown is assumed to have that of `attachment` if both name the same PersistentVolume.
    fn others_of_volume<'e>(
        &'e self,
        attachment: &'e Attachment,
        volume_id: &'e str,
    ) -> impl Iterator<Item = &'e Arc<Attachment>> {
        let same_volume = attachment
            .volume_name()
            .map(|volume| self.index.by_volume.get(volume));
        let of_unknown_handle = same_volume
            .into_iter()
            .flatten()
            .filter_map(|name| self.index.attachments.get(name))
            .filter(|other| self.index.handle(other).is_none());
        self.index
            .by_handle
            .get(volume_id)
            .filter_map(|name| self.index.attachments.get(name))
            .chain(of_unknown_handle)
    }
}

#[cfg(test)]
mod tests;
