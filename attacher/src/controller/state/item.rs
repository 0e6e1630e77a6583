//! The work items that the state takes from the queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::{Attachment, PublishTarget, SecretRef, Volume};
use crate::plan::{AttachPlan, Operation};

/// One key of the queue, with the newest objects of its name. [`ControllerState::finish`](super::ControllerState::finish)
/// takes it back together with the result of its sync.
#[derive(Clone, Debug)]
pub enum Item {
    /// Attach or detach.
    Attachment {
        /// The VolumeAttachment.
        attachment: Arc<Attachment>,
        /// Which of the two.
        operation: Operation,
        /// What an earlier sync learnt from the driver and could not write.
        pending: Option<PendingStatusWrite>,
        /// Whether the object itself requires nothing: reconcile does, or a driver that has publish calls again.
        repair: bool,
    },
    /// Unpublish a target whose VolumeAttachment is gone.
    Target(Arc<AbandonedTarget>),
    /// Remove our finalizer from a PersistentVolume.
    Volume(Arc<Volume>),
    /// Record the handle of a deleted PersistentVolume on VolumeAttachments that lack it.
    DeletedVolume {
        /// The PersistentVolume.
        volume: Arc<Volume>,
        /// The VolumeAttachments.
        attachments: Vec<Arc<Attachment>>,
    },
}

/// A target that must be unpublished if its VolumeAttachment is gone: deleted during its publish, or by hand before its
/// status was written, so no finalizer protects the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedTarget {
    /// What to unpublish from where.
    pub target: PublishTarget,
    /// The Secret to send.
    pub secret: Option<SecretRef>,
    /// Whether the volume is an in-tree one that is migrated to CSI.
    pub migrated: bool,
    /// The VolumeAttachment whose attach published it.
    pub attachment: Arc<Attachment>,
}

// === impl AbandonedTarget ===

impl AbandonedTarget {
    /// The target of `plan`, which `attachment` no longer leads to.
    pub(in crate::controller) fn new(attachment: &Arc<Attachment>, plan: &AttachPlan) -> Self {
        Self {
            target: plan.target.clone(),
            secret: plan.secret.clone(),
            migrated: plan.migrated,
            attachment: attachment.clone(),
        }
    }
}

/// A result of the driver that is not in the VolumeAttachment yet because the write failed. The next sync repeats the write
/// without another call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingStatusWrite {
    /// ControllerPublishVolume succeeded.
    Published {
        /// For this volume and node.
        target: PublishTarget,
        /// With this `publish_context`.
        context: BTreeMap<String, String>,
    },
    /// ControllerUnpublishVolume succeeded.
    Unpublished,
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
            Self::Unpublished | Self::Listed => false,
        }
    }
}
