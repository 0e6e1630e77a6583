//! The machine's inputs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{AttachInputs, DetachEvidence, Operation, Orphan, OtherAttachment, Proof, Published, attach};
use crate::model::{Attachment, Driver, PublishTarget, Uid};

/// All that a decision rests on, beside [`Progress`].
#[derive(Debug)]
pub(crate) struct View<'v> {
    pub(crate) context: SyncContext<'v>,
    pub(crate) subject: &'v Subject,
    /// The newest objects; without the VolumeAttachment, `None`. Those of an orphan have the VolumeAttachment that published it.
    pub(crate) inputs: Option<AttachInputs>,
    /// The operation that the newest VolumeAttachment needs.
    pub(crate) operation: Option<Operation>,
    /// Other VolumeAttachments of the volume.
    pub(crate) others: Vec<OtherAttachment<'v>>,
    pub(crate) orphans: &'v BTreeMap<PublishTarget, Arc<Orphan>>,
    pub(crate) evidence: &'v DetachEvidence,
    /// Number of the connection to the driver.
    pub(crate) connection: u64,
}

/// What the controller knows beside its state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SyncContext<'c> {
    pub(crate) driver: &'c Driver,
    /// When the session with the driver was opened.
    pub(crate) session: Option<Instant>,
    /// `--assume-unpublished-after`.
    pub(crate) assume_after: Duration,
    /// The targets whose locks the sync holds.
    pub(crate) locked: &'c [PublishTarget],
}

/// What a sync is about.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// An operation on a VolumeAttachment, as it was when the sync began.
    Attachment(Operation, Arc<Attachment>),
    Orphan(Arc<Orphan>),
}

// === impl View ===

impl View<'_> {
    /// Whether the result of a publish may be written: a publish now has the same target, or is refused although our finalizer and
    /// the recorded target ensure a detach.
    pub(super) fn may_write(&self, published: &Published) -> bool {
        let Some(inputs) = self.inputs.as_ref().filter(|inputs| !inputs.attachment.deleting) else {
            return true;
        };
        // The target does not depend on the driver's capabilities.
        match attach(inputs, self.context.driver) {
            Ok(now) => now.target == published.target && now.record.is_none() && now.former.is_none(),
            Err(_) => {
                let Attachment { recorded, .. } = &*inputs.attachment;
                inputs.attachment.finalizer
                    && recorded.node_id.as_ref() == Some(&published.target.node_id)
                    && recorded
                        .handle
                        .as_ref()
                        .is_none_or(|handle| published.target.with_volume(handle) == published.target)
            }
        }
    }

    /// Whether the proof is about the id that the node registers now.
    pub(super) fn is_covered_by(&self, proof: &Proof) -> bool {
        let node = self.inputs.as_ref().and_then(|inputs| inputs.node.as_ref());
        let present = node.and_then(|node| node.id.as_ref());
        present.is_none_or(|id| proof.node_ids().contains(id))
    }
}

// === impl Subject ===

impl Subject {
    /// The VolumeAttachment, for an orphan the one that published it.
    pub(crate) fn attachment(&self) -> &Arc<Attachment> {
        match self {
            Self::Attachment(_, attachment) => attachment,
            Self::Orphan(orphan) => &orphan.attachment,
        }
    }

    /// Identifies it beside all other VolumeAttachments and orphans.
    pub(crate) fn uid(&self) -> Uid {
        match self {
            Self::Attachment(_, attachment) => attachment.uid.clone(),
            Self::Orphan(orphan) => orphan.uid(),
        }
    }

    pub(crate) fn operation(&self) -> Option<Operation> {
        match self {
            Self::Attachment(operation, _) => Some(*operation),
            Self::Orphan(_) => None,
        }
    }
}
