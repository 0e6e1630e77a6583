//! The plan of a detach: the targets to unpublish, and the evaluation of the driver's responses.

use std::sync::Arc;

use super::{AttachInputs, Refusal, node_id, spec};
use crate::model::{Driver, PublishTarget, SecretRef};

/// Everything a detach needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachPlan {
    /// The target to unpublish first.
    pub(crate) target: PublishTarget,
    /// The node's present id, as far as it is not the one in `target`.
    pub(crate) present: PresentNodeId,
    /// The Secret to send.
    pub(crate) secret: Option<SecretRef>,
    /// Whether the volume is known to be an in-tree one that is migrated to CSI.
    pub(crate) migrated: bool,
}

/// The present id in the node's CSINode, compared with the node id in [`DetachPlan::target`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PresentNodeId {
    /// They are equal.
    Same,
    /// No other id: the CSINode is gone or does not list the driver, or no VolumeAttachment records the target.
    NoOther,
    /// The node registered again under another id. It may be the same machine, so that the volume may be attached
    /// under this id although it was published under the other one.
    Differs(Arc<str>),
}

/// The result of one ControllerUnpublishVolume for a node id, as far as a detach depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnpublishResult {
    /// OK: the volume is not published there.
    Unpublished,
    /// Not called: another VolumeAttachment uses the volume there, and unpublishes it when it is deleted.
    InUse,
    /// NOT_FOUND: there is no such volume or node.
    NotFound,
    /// INVALID_ARGUMENT: the driver may not understand the node id.
    InvalidArgument,
    /// Any other code.
    Failed,
}

/// The outcome of the results for the recorded and the present node id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DetachOutcome {
    /// The volume is detached: the finalizer can be removed.
    Detached,
    /// The present node id has to be unpublished, too.
    UnpublishPresent,
    /// The driver understands neither node id.
    Unresolved,
    /// The last call has to be repeated.
    Retry,
}

// === impl PresentNodeId ===

impl PresentNodeId {
    /// For a target that no VolumeAttachment records; NOT_FOUND under its own id counts as unpublished.
    pub(crate) fn other_than(node_id: &Arc<str>, present: Option<&Arc<str>>) -> Self {
        let other = present.filter(|present| *present != node_id);
        other.map_or(Self::NoOther, |other| Self::Differs(other.clone()))
    }
}

// === impl DetachPlan ===

impl DetachPlan {
    /// The target by the node's present id, where that differs.
    pub(crate) fn present_target(&self) -> Option<PublishTarget> {
        let PresentNodeId::Differs(node_id) = &self.present else {
            return None;
        };
        Some(PublishTarget {
            node_id: node_id.clone(),
            ..self.target.clone()
        })
    }
}

/// Plans the detach of `inputs.attachment`.
///
/// The record takes precedence over the PersistentVolume, because it is the published target. The Go sidecar records
/// only the node id.
///
/// # Errors
///
/// A [`Refusal`] whose text belongs in `status.detachError`.
pub(crate) fn detach(inputs: &AttachInputs, driver: &Driver) -> Result<DetachPlan, Refusal> {
    let attachment = &*inputs.attachment;
    let recorded = &attachment.recorded;
    // Neither the volume's deletion nor its driver matters: the handle may have been published before it was replaced.
    let spec = spec(inputs);
    let migrated = spec.as_ref().is_ok_and(|spec| spec.migrated);
    let known = spec.and_then(|spec| spec.csi.as_ref().map_err(|none| none.clone().into()));
    let handle = match (&recorded.handle, &known) {
        (Some(handle), _) => handle.clone(),
        (None, Ok(csi)) => csi.handle.clone(),
        (None, Err(refusal)) => return Err(refusal.clone()),
    };
    let secret = match known {
        Ok(csi) if csi.handle == handle => csi.publish_secret.clone(),
        Ok(_) | Err(_) => recorded.secret.clone(),
    };
    let (node_id, present) = match (&recorded.node_id, node_id(inputs, driver)) {
        (Some(recorded), Ok(present)) if present == recorded => (recorded, PresentNodeId::Same),
        (Some(recorded), Ok(present)) => (recorded, PresentNodeId::Differs(present.clone())),
        (Some(recorded), Err(_)) => (recorded, PresentNodeId::NoOther),
        (None, present) => (present?, PresentNodeId::Same),
    };
    Ok(DetachPlan {
        target: PublishTarget {
            volume_id: handle,
            node_id: node_id.clone(),
        },
        present,
        secret,
        migrated,
    })
}

/// The outcome of the result for the `recorded` node id and, once it is known, of that for the `present` one.
///
/// A driver may return OK for a node id that it no longer knows, so if the ids differ, both must be unpublished. If
/// the driver does not understand the recorded id (INVALID_ARGUMENT), it must detach the volume under the present one.
pub(crate) fn detach_outcome(
    recorded: UnpublishResult,
    present_id: &PresentNodeId,
    present: Option<UnpublishResult>,
) -> DetachOutcome {
    use UnpublishResult::*;
    match (recorded, present_id, present) {
        (Failed, _, _) => DetachOutcome::Retry,
        (Unpublished | InUse, PresentNodeId::Same, _) => DetachOutcome::Detached,
        (NotFound | InvalidArgument, PresentNodeId::Same, _) => DetachOutcome::Retry,
        (Unpublished | InUse | NotFound, PresentNodeId::NoOther, _) => DetachOutcome::Detached,
        (InvalidArgument, PresentNodeId::NoOther, _) => DetachOutcome::Unresolved,
        (_, PresentNodeId::Differs(_), None) => DetachOutcome::UnpublishPresent,
        (_, PresentNodeId::Differs(_), Some(Failed)) => DetachOutcome::Retry,
        (_, PresentNodeId::Differs(_), Some(Unpublished | InUse)) => DetachOutcome::Detached,
        (Unpublished | InUse | NotFound, PresentNodeId::Differs(_), Some(NotFound | InvalidArgument)) => {
            DetachOutcome::Detached
        }
        (InvalidArgument, PresentNodeId::Differs(_), Some(NotFound | InvalidArgument)) => {
            DetachOutcome::Unresolved
        }
    }
}
