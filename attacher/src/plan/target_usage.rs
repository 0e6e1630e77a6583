//! Whether a publish target may be unpublished beside other VolumeAttachments of the same volume.
//!
//! The attach/detach controller creates one VolumeAttachment for a volume and a node, but users can create others, and a
//! node id can move to another node.

use std::sync::Arc;

use crate::model::{Attachment, PublishTarget};

/// How other VolumeAttachments use a target, the most important last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TargetUsage {
    /// Not at all.
    Unused,
    /// Only by VolumeAttachments that are being deleted, whose detaches unpublish it, too.
    Deleting,
    /// By one that is attached and lacks our finalizer, so that nothing ensures its detach.
    MissingFinalizer,
    /// Perhaps: one on the same node was published under another node id, which may name the same machine. An unpublish
    /// could take the volume away from its pod; without one the volume may stay published.
    Ambiguous,
    /// By one whose detach will unpublish it.
    InUse,
}

/// The VolumeAttachments that count as users of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UsedBy {
    /// Those whose record names it: they were published there.
    Record,
    /// Also those whose node has its node id now, independent of their record. For a target that is only unpublished
    /// because it may be another id of the recorded one.
    RecordOrPresentId,
}

/// Another VolumeAttachment of the volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OtherAttachment<'a> {
    pub(crate) attachment: &'a Attachment,
    /// The id that its node's CSINode shows now.
    pub(crate) present_id: Option<&'a Arc<str>>,
    /// Whether its stored record is up to date. A write that changes the recorded node id may be under way, or its response
    /// lost.
    pub(crate) is_record_certain: bool,
}

/// How `other` uses `target`, which is to be unpublished for `attachment`.
pub(crate) fn target_usage(
    attachment: &Attachment,
    target: &PublishTarget,
    used_by: UsedBy,
    other: OtherAttachment<'_>,
) -> TargetUsage {
    let OtherAttachment {
        attachment: other,
        present_id,
        is_record_certain,
    } = other;
    // Only our finalizer ensures a detach. Before an attach has stored it, the driver was not called.
    let may_be_published = other.finalizer || !other.deleting && other.attached;
    if other.uid == attachment.uid || !may_be_published {
        return TargetUsage::Unused;
    }
    let recorded = other.recorded.node_id.as_ref().or(present_id);
    let is_recorded = recorded == Some(&target.node_id);
    let is_used = match used_by {
        UsedBy::Record => is_recorded && is_record_certain,
        UsedBy::RecordOrPresentId => is_recorded || present_id == Some(&target.node_id),
    };
    match (is_used, other.deleting) {
        (true, true) => TargetUsage::Deleting,
        (true, false) if other.finalizer => TargetUsage::InUse,
        (true, false) => TargetUsage::MissingFinalizer,
        (false, false) if other.node == attachment.node => TargetUsage::Ambiguous,
        (false, _) => TargetUsage::Unused,
    }
}
