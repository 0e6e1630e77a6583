//! The work items that the state takes from the queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Attachment, PublishTarget, SecretRef, Volume};
use crate::plan::{Operation, Proof};

/// One key of the queue, with the newest objects of its name. The caller returns it with the result of its sync to
/// [`ControllerState::finish`](super::ControllerState::finish).
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// Attach or detach.
    Attachment {
        attachment: Arc<Attachment>,
        operation: Operation,
    },
    /// Unpublish a target whose VolumeAttachment is gone.
    Target(Arc<AbandonedTarget>),
    /// Remove our finalizer from a PersistentVolume.
    Volume(Arc<Volume>),
    /// Record the handle of a PersistentVolume on VolumeAttachments that lack it.
    Backfill {
        volume: Arc<Volume>,
        attachments: Vec<Arc<Attachment>>,
    },
}

/// A target that must be unpublished if its VolumeAttachment is gone: deleted during its publish, or by hand before its
/// status was written, so no finalizer protects the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbandonedTarget {
    pub(crate) target: PublishTarget,
    pub(crate) secret: Option<SecretRef>,
    /// Whether the volume is an in-tree one that is migrated to CSI.
    pub(crate) migrated: bool,
    /// The VolumeAttachment whose attach published it.
    pub(crate) attachment: Arc<Attachment>,
}

/// A result of the driver that is not in the VolumeAttachment yet because the write failed. The next sync repeats the write
/// without another call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PendingStatusWrite {
    /// ControllerPublishVolume succeeded, with this `publish_context`.
    Published {
        target: PublishTarget,
        context: BTreeMap<String, String>,
    },
    /// The volume is unpublished, by OK alone: any other proof ends with the driver's session.
    Unpublished(Proof),
    /// ListVolumes lists the volume on its node, although a republish failed.
    Listed,
}

// === impl PendingStatusWrite ===

impl PendingStatusWrite {
    /// Whether a reconnect of the driver invalidates it: a restarted driver may have lost the publish, or return another
    /// context. An unpublished volume stays unpublished.
    pub(super) fn ends_with_connection(&self) -> bool {
        match self {
            Self::Published { .. } => true,
            Self::Unpublished(_) | Self::Listed => false,
        }
    }
}
