//! Who else needs a volume to stay where it is.
//!
//! Kubernetes makes one VolumeAttachment for a volume and a node, but nothing keeps people from making a
//! second one, and a node's id may come to another node. Whoever is about to unpublish asks here first.

use super::Engine;
use crate::model::{Attachment, Target};
use crate::queue::Key;

/// Who else is answerable for a volume on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Held {
    /// Nobody.
    ByNobody,
    /// Only attachments that are being deleted themselves, and unpublish it when they are.
    ByLeaving,
    /// An attachment that is to stay.
    ByLiving,
}

// === impl Engine ===

impl Engine {
    /// Who else than `attachment` holds `target`.
    pub fn held_besides(&self, attachment: &Attachment, target: &Target) -> Held {
        // One with the handle on record, or one of the same source without any, which may have been there
        // before us; and of the same volume object or on the same node.
        let by_handle = self.index.attachments_of_handle(&target.handle);
        let (by_volume, by_node) = match attachment.volume_name() {
            Some(volume) => (Some(self.index.attachments_of_volume(volume)), None),
            // Volumes that are specified in place are few, and not worth an index.
            None => (None, Some(self.index.attachments_of_node(&attachment.node))),
        };
        by_handle
            .chain(by_volume.into_iter().flatten())
            .chain(by_node.into_iter().flatten())
            .filter(|name| **name != attachment.name)
            .filter_map(|name| self.index.attachment(name))
            .filter(|other| is_neighbour(other, attachment))
            .filter(|other| self.is_at(other, attachment, target) && self.may_be_published(other))
            .map(|other| {
                if other.deleting {
                    Held::ByLeaving
                } else {
                    Held::ByLiving
                }
            })
            .max()
            .unwrap_or(Held::ByNobody)
    }

    /// Whether `other`, a neighbour of `attachment`, is about the volume and the node id of `target`.
    fn is_at(&self, other: &Attachment, attachment: &Attachment, target: &Target) -> bool {
        let node_id = other
            .recorded
            .node_id
            .as_ref()
            .or_else(|| self.index.node(&other.node)?.id.as_ref());
        let same_volume = match &other.recorded.handle {
            Some(handle) => *handle == target.handle,
            None => other.source == attachment.source,
        };
        same_volume && node_id == Some(&target.node_id)
    }

    /// The finalizer is stored before the first call; while that is under way, we may not know of it.
    fn may_be_published(&self, other: &Attachment) -> bool {
        other.finalizer
            || !other.deleting
                && (other.attached || self.queue.is_running(&Key::Attachment(other.name.clone())))
    }
}

/// Whether both are on one node, or of one volume object.
fn is_neighbour(other: &Attachment, attachment: &Attachment) -> bool {
    let same_volume = || other.volume_name().is_some() && other.volume_name() == attachment.volume_name();
    other.node == attachment.node || same_volume()
}

#[cfg(test)]
mod tests;
