//! The machine's results.

use std::sync::Arc;

use super::{AttachPlan, DetachPlan, Orphan, Proof, Published, PvFinalizer, Record, Refusal};
use crate::model::{PublishTarget, SecretRef};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    /// Nothing is left to do.
    Done,
    /// Nothing can be done now: the sync ends, and is repeated.
    Stop(Stop),
    /// The locks of these targets, in their order, instead of all others; then another decision.
    Lock(Vec<PublishTarget>),
    /// These, concurrently; then another decision, unless one of them fails.
    Act(Vec<Command>),
}

/// A request, a call, or a change of what this process knows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    /// Wait for the driver's session, and read its capabilities.
    Connect,
    GetAttachment,
    /// Read another VolumeAttachment, which uses the target, by its name.
    GetOther(Arc<str>),
    GetVolume(Arc<str>),
    GetNode(Arc<str>),
    /// A Secret that is absent or forbidden is an error for a publish alone.
    GetSecret {
        secret: SecretRef,
        is_required: bool,
    },
    AddPvFinalizer(PvFinalizer),
    Record(Record),
    /// Write an attachError, before an attach unpublishes this target of an earlier one: a status write of that one that the API server
    /// executes late is refused then, and a crash leaves an error, which repeats the attach.
    SaveUndoError(PublishTarget),
    Publish(Box<AttachPlan>),
    Unpublish {
        target: PublishTarget,
        secret: Option<SecretRef>,
        recorded_secret: Option<SecretRef>,
        migrated: bool,
    },
    /// Unpublish the target until a proof, whatever becomes of its VolumeAttachment.
    KeepOrphan(Orphan),
    /// The orphan is unpublished or another VolumeAttachment's.
    EndOrphan,
    /// Keep the proof until its writes have succeeded.
    KeepProof(Proof),
    /// Write `attached: true`, after this publish or, for a driver without publish calls, without one.
    MarkAttached(Option<Published>),
    MarkDetached,
    RemoveFinalizer(Proof),
}

/// Why a sync ends before its work is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Refused(Refusal),
    /// The driver had publish calls, and reports none.
    NoPublishCalls,
    /// Nothing proves that the targets are unpublished.
    Unproven(Box<Unproven>),
    /// The last call failed.
    Failed,
    /// Another VolumeAttachment uses the target and lacks our finalizer or the handle of its volume.
    MissingFinalizer(PublishTarget),
    /// Another VolumeAttachment on the same node was published under another node id.
    AmbiguousNodeId(PublishTarget),
}

/// A detach without a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unproven {
    pub(crate) plan: DetachPlan,
    /// The node ids from which nothing proves that the volume is unpublished: the recorded one, the present one, or both.
    pub(crate) node_ids: Vec<Arc<str>>,
}

// === impl Command ===

impl Command {
    pub(crate) fn is_call(&self) -> bool {
        matches!(self, Self::Publish(_) | Self::Unpublish { .. })
    }

    /// Whether it begins something, which a shutdown prevents, and does not complete what was begun.
    pub(crate) fn begins(&self) -> bool {
        match self {
            Self::KeepOrphan(_) | Self::EndOrphan | Self::KeepProof(_) => false,
            Self::MarkAttached(_) | Self::MarkDetached | Self::RemoveFinalizer(_) => false,
            Self::Connect | Self::GetAttachment | Self::GetOther(_) => true,
            Self::GetVolume(_) | Self::GetNode(_) => true,
            Self::GetSecret { .. } | Self::AddPvFinalizer(_) | Self::Record(_) => true,
            Self::SaveUndoError(_) => true,
            Self::Publish(_) | Self::Unpublish { .. } => true,
        }
    }
}
