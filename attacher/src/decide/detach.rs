//! Detach: where the volume was published, and what is left to write afterwards.

use std::sync::Arc;

use super::{Facts, Refusal, csi, node_id, spec};
use crate::model::{Driver, SecretRef, Target};

/// Everything a detach needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DetachPlan {
    /// What to unpublish from where.
    pub target: Target,
    /// Another node id to try when the driver does not know the one in `target`.
    pub other_node_id: Option<Arc<str>>,
    /// The Secret to send.
    pub secret: Option<SecretRef>,
    /// Whether the volume is known to be an in-tree one that is migrated to CSI.
    pub migrated: bool,
    /// Whether the VolumeAttachment outlives our finalizer, so that its status must be told.
    pub foreign_finalizers: bool,
}

/// Plans the detach of `facts.attachment`.
///
/// What was recorded before the publish call wins over what the PersistentVolume and the CSINode say
/// today: it is where we published. An attachment of the Go sidecar has only the node id recorded.
///
/// # Errors
///
/// A [`Refusal`] whose text belongs in `status.detachError`.
pub fn detach(facts: &Facts, driver: &Driver) -> Result<DetachPlan, Refusal> {
    let attachment = &*facts.attachment;
    let recorded = &attachment.recorded;
    // The volume's deletion does not matter here, nor does its driver: with our finalizer on the
    // attachment, its handle may have been published by whoever served us before.
    let spec = spec(facts);
    let migrated = spec.as_ref().is_ok_and(|spec| spec.is_migrated());
    let known = spec.and_then(csi);
    let handle = match (&recorded.handle, &known) {
        (Some(handle), _) => handle.clone(),
        (None, Ok(csi)) => csi.handle.clone(),
        (None, Err(refusal)) => return Err(refusal.clone()),
    };
    let secret = match known {
        Ok(csi) if csi.handle == handle => csi.publish_secret.clone(),
        Ok(_) | Err(_) => recorded.secret.clone(),
    };
    let today = node_id(facts, driver);
    let (node_id, other_node_id) = match (&recorded.node_id, today) {
        (Some(recorded), today) => (recorded.clone(), today.ok().filter(|id| *id != recorded).cloned()),
        (None, today) => (today?.clone(), None),
    };
    Ok(DetachPlan {
        target: Target { handle, node_id },
        other_node_id,
        secret,
        migrated,
        foreign_finalizers: attachment.foreign_finalizers,
    })
}
