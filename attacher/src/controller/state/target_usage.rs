//! Who else needs a volume to stay where it is.
//!
//! Kubernetes makes one VolumeAttachment for a volume and a node, but nothing keeps people from making a
//! second one, and a node's id may come to another node. Whoever is about to unpublish asks here first.

use std::sync::Arc;

use super::ControllerState;
use crate::model::{Attachment, PublishTarget};

/// Who else is answerable for a volume on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TargetUsage {
    /// Nobody.
    Unused,
    /// Only attachments that are being deleted themselves, and unpublish it when they are.
    Deleting,
    /// An attachment that is attached, and lacks the finalizer for which it would be detached one day.
    MissingFinalizer,
    /// An attachment that is to stay.
    InUse,
}

/// Which attachments count as using a volume at a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsedBy {
    /// Those whose record names it: that is where they were published.
    Record,
    /// Those, too, whose node has its node id now: their machine may be known by that id, whatever their record says.
    /// For a target that is only unpublished because it may be another name of the recorded one.
    RecordOrPresentId,
}

// === impl ControllerState ===

impl ControllerState {
    /// Who else than `attachment` holds `target`.
    ///
    /// Only our finalizer makes anybody answerable. An attachment whose first job is about to store it has
    /// called nobody yet, and may fail before it does.
    pub fn usage_besides(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        used_by: UsedBy,
    ) -> TargetUsage {
        let held = self.others_at(attachment, target, used_by).map(|other| {
            if other.deleting {
                TargetUsage::Deleting
            } else if other.finalizer {
                TargetUsage::InUse
            } else {
                TargetUsage::MissingFinalizer
            }
        });
        held.max().unwrap_or(TargetUsage::Unused)
    }

    /// Has all that hold `target` without our finalizer attached again, which puts it on them.
    pub fn restore_finalizers(&mut self, attachment: &Attachment, target: &PublishTarget, used_by: UsedBy) {
        let unguarded: Vec<_> = self
            .others_at(attachment, target, used_by)
            .filter(|other| !other.finalizer && self.operation(other).is_none())
            .cloned()
            .collect();
        for other in unguarded {
            self.attach_again(&other);
        }
    }

    /// The record of `attachment` is about to be changed to another target. Until it is known what became of
    /// that, nobody is to rely on the one that is known: the answer to the write may be lost.
    pub fn node_id_update_begins(&mut self, attachment: &Attachment) {
        self.node_id_update_pending.insert(attachment.uid.clone());
    }

    /// What is known of its record holds.
    pub fn node_id_update_ends(&mut self, attachment: &Attachment) {
        self.node_id_update_pending.remove(&attachment.uid);
    }

    /// Whether its record may be another one than the one that is known.
    pub fn is_node_id_update_pending(&self, attachment: &Attachment) -> bool {
        self.node_id_update_pending.contains(&attachment.uid)
    }

    /// Other attachments of the volume and the node id of `target`, by which the driver knows them, whatever
    /// their objects are called.
    fn others_at<'e>(
        &'e self,
        attachment: &'e Attachment,
        target: &'e PublishTarget,
        used_by: UsedBy,
    ) -> impl Iterator<Item = &'e Arc<Attachment>> {
        // Of those whose handle nobody knows any more, the ones of the same volume object have that of
        // `attachment`, one supposes.
        let by_volume = attachment
            .volume_name()
            .map(|volume| self.index.attachments_of_volume(volume));
        let of_unknown_handle = by_volume
            .into_iter()
            .flatten()
            .filter_map(|name| self.index.attachment(name))
            .filter(|other| self.index.handle(other).is_none());
        self.index
            .attachments_of_handle(&target.volume_id)
            .filter_map(|name| self.index.attachment(name))
            .chain(of_unknown_handle)
            .filter(move |other| {
                // One whose node has the target's id keeps the volume there, whatever becomes of its record.
                let is_reliable =
                    used_by == UsedBy::RecordOrPresentId || !self.is_node_id_update_pending(other);
                other.uid != attachment.uid && is_reliable
            })
            .filter(move |other| self.is_at(other, &target.node_id, used_by))
            .filter(|other| other.finalizer || !other.deleting && other.attached)
    }

    fn is_at(&self, other: &Attachment, node_id: &Arc<str>, used_by: UsedBy) -> bool {
        let present = || self.index.node(&other.node)?.id.as_ref();
        let recorded = other.recorded.node_id.as_ref();
        let by_record = recorded.or_else(present) == Some(node_id);
        by_record || used_by == UsedBy::RecordOrPresentId && present() == Some(node_id)
    }
}

#[cfg(test)]
mod tests;
