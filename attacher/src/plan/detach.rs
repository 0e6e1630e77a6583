//! The plan of a detach: the targets to unpublish.

use std::sync::Arc;

use super::{AttachInputs, NodeState, Refusal, node_id, spec};
use crate::model::{CsiSource, Driver, PublishTarget, Recorded, SecretRef};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachPlan {
    /// The target to unpublish first.
    pub(crate) target: PublishTarget,
    /// The node's CSINode, compared with the node id in `target`.
    pub(crate) node: NodeState,
    /// The Secret to send: that of the volume, else the recorded one.
    pub(crate) secret: Option<SecretRef>,
    /// The recorded one, if it is another: it is sent if the first cannot be read, or the volume names none now. Then only OK is a
    /// proof, as without one.
    pub(crate) recorded_secret: Option<SecretRef>,
    /// Whether the volume is known to be an in-tree one that is migrated to CSI.
    pub(crate) migrated: bool,
}

// === impl DetachPlan ===

impl DetachPlan {
    /// Whether the node id is the target's or the node's present one.
    pub(super) fn covers(&self, node_id: &str) -> bool {
        let is_present = matches!(&self.node, NodeState::OtherId(present) if **present == *node_id);
        *self.target.node_id == *node_id || is_present
    }

    /// The target by the node's present id, where that differs.
    pub(crate) fn present_target(&self) -> Option<PublishTarget> {
        let NodeState::OtherId(node_id) = &self.node else {
            return None;
        };
        Some(PublishTarget {
            node_id: node_id.clone(),
            ..self.target.clone()
        })
    }

    /// The Secrets to read, up to the first that exists and may be read.
    pub(super) fn secrets(&self) -> impl Iterator<Item = &SecretRef> {
        self.secret.iter().chain(&self.recorded_secret)
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
    let node_id: &Arc<str> = match &recorded.node_id {
        Some(recorded) => recorded,
        None => node_id(inputs, driver)?,
    };
    let target = PublishTarget {
        volume_id: handle,
        node_id: node_id.clone(),
    };
    let csi = known.ok().filter(|csi| target.with_volume(&csi.handle) == target);
    let (secret, recorded_secret) = secrets(csi, recorded);
    Ok(DetachPlan {
        node: NodeState::of(inputs.node.as_deref(), node_id),
        target,
        secret,
        recorded_secret,
        migrated,
    })
}

/// The Secret to send to unpublish a volume with this source, and the one to send if it cannot be read or there is none. Of an
/// unknown source, the recorded one.
pub(super) fn secrets(
    csi: Option<&CsiSource>,
    recorded: &Recorded,
) -> (Option<SecretRef>, Option<SecretRef>) {
    let recorded = recorded.secret.clone();
    let Some(csi) = csi else {
        return (recorded, None);
    };
    let secret = csi.publish_secret.clone();
    let other = recorded.filter(|recorded| secret.as_ref() != Some(recorded));
    (secret, other)
}
