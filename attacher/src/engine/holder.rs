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
        let same_node = self.index.attachments_of_node(&attachment.node);
        let same_volume = attachment
            .volume_name()
            .map(|volume| self.index.attachments_of_volume(volume));
        same_node
            .chain(same_volume.into_iter().flatten())
            .filter(|name| **name != attachment.name)
            .filter_map(|name| self.index.attachment(name))
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
