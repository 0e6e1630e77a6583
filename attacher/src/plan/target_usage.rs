//! Whether a publish target may be unpublished beside other VolumeAttachments of the same volume.
//!
//! The attach/detach controller creates one VolumeAttachment for a volume and a node, but users can create others, and a
//! node id can move to another node.

use std::sync::Arc;

use super::Stop;
use crate::model::handle::may_be_same_volume;
use crate::model::{Attachment, PublishTarget};

/// Another VolumeAttachment of the volume.
#[derive(Clone, Debug)]
pub(crate) struct OtherAttachment<'a> {
    pub(crate) attachment: &'a Attachment,
    /// Its volume handle; `None` if unknown.
    pub(crate) handle: Option<&'a Arc<str>>,
    /// The id that its node's CSINode shows now.
    pub(crate) present_id: Option<&'a Arc<str>>,
    /// Whether a write that changes its recorded target is under way, or its response lost.
    pub(crate) is_record_uncertain: bool,
    /// Whether it is attached, being synced, or published without a written status.
    pub(crate) may_be_attached: bool,
}

/// Whether another live VolumeAttachment with our finalizer records the target, and unpublishes it when it is deleted. The
/// variants are in the order of their precedence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetUsage {
    No,
    /// No, as another one on the node, with another node id, is not attached. The store may be late, so a live read must agree.
    Idle,
    /// Unknown until the other one changes.
    Wait(Stop),
    Yes,
}

/// Whether one of `others` uses `target`, which is to be unpublished for `attachment`. `is_present` says that `attachment` does
/// not record the target: it may be another id of the recorded one.
pub(crate) fn target_usage(
    attachment: &Attachment,
    target: &PublishTarget,
    is_present: bool,
    others: &[OtherAttachment<'_>],
) -> TargetUsage {
    let is_certain = |other: &OtherAttachment<'_>| {
        other
            .handle
            .is_some_and(|handle| target.with_volume(handle) == *target)
    };
    let is_its_volume = |handle: &Arc<str>| may_be_same_volume(handle, &target.volume_id, &target.node_id);
    let others = || {
        let others = others.iter().filter(|o| o.attachment.uid != attachment.uid);
        others.filter(|other| other.handle.is_none_or(is_its_volume))
    };
    let is_on_node = |other: &OtherAttachment<'_>| other.attachment.node == attachment.node;
    let may_be_attached_on_node =
        others().any(|other| is_on_node(other) && !other.attachment.deleting && other.may_be_attached);
    let by = |other: &OtherAttachment<'_>| {
        let (known, present) = (other.attachment, other.present_id);
        // Two detaches never wait for each other, and before an attach has stored our finalizer, the driver was not called.
        if known.deleting || !known.finalizer && !known.attached {
            return TargetUsage::No;
        }
        let records_it = known.recorded.node_id.as_ref().or(present) == Some(&target.node_id);
        let is_used = match is_present {
            true => records_it || present == Some(&target.node_id),
            false => records_it && !other.is_record_uncertain,
        };
        match is_used {
            true if is_certain(other) && (known.finalizer || is_present) => TargetUsage::Yes,
            // Nothing ensures its detach until its attach restores the finalizer, or while its volume may be another one.
            true => TargetUsage::Wait(Stop::MissingFinalizer(target.clone())),
            // It was published under another node id, which may name the same machine: an unpublish could take the volume away
            // from its pod; without one the volume may stay published.
            false if is_on_node(other) => {
                let is_detached_before = attachment.deleting && !attachment.finalizer;
                match is_detached_before {
                    // If the volume is published there nevertheless, reconcile finds it.
                    true => TargetUsage::Yes,
                    // The other attach may need this very unpublish, and publishes again after it.
                    false if !attachment.deleting && !may_be_attached_on_node => TargetUsage::Idle,
                    false => TargetUsage::Wait(Stop::AmbiguousNodeId(target.clone())),
                }
            }
            false => TargetUsage::No,
        }
    };
    others()
        .map(by)
        .max_by_key(TargetUsage::precedence)
        .unwrap_or(TargetUsage::No)
}

// === impl TargetUsage ===

impl TargetUsage {
    fn precedence(&self) -> u8 {
        match self {
            Self::No => 0,
            Self::Idle => 1,
            Self::Wait(_) => 2,
            Self::Yes => 3,
        }
    }
}
