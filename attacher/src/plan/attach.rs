//! The plan of an attach.

use std::collections::BTreeMap;
use std::sync::Arc;

use csi_proto::v1::VolumeCapability;

use super::capability::capability;
use super::{AttachInputs, DetachPlan, NodeState, Refusal, detach, node_id, spec};
use crate::model::{Attachment, CsiSource, Driver, PublishTarget, Recorded, SecretRef, Uid};

/// Everything that an attach sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachPlan {
    pub(crate) target: PublishTarget,
    /// Detach of an earlier attach's target, to execute before the publish, if that target differs from `target`.
    pub(crate) former: Option<DetachPlan>,
    /// CSI `volume_capability`.
    pub(crate) capability: VolumeCapability,
    /// CSI `readonly`.
    pub(crate) read_only: bool,
    /// CSI `volume_context`.
    pub(crate) volume_context: BTreeMap<String, String>,
    pub(crate) secret: Option<SecretRef>,
    /// Whether the volume is an in-tree one that is migrated to CSI.
    pub(crate) migrated: bool,
    /// The PersistentVolume that lacks our finalizer, or is about to lose it.
    pub(crate) pv_finalizer: Option<PvFinalizer>,
    /// The record to write, if the VolumeAttachment lacks it.
    pub(crate) record: Option<Record>,
}

/// A PersistentVolume that must get our finalizer, so that it outlives its attachments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PvFinalizer {
    /// Name of the PersistentVolume.
    pub(crate) volume: Arc<str>,
    pub(crate) uid: Uid,
}

/// The record that a VolumeAttachment must have before the publish: our finalizer and the annotations with which a later
/// process can unpublish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The annotations; `None` removes one.
    pub annotations: Recorded,
    /// Whether the write repeats the stored values. The stored object may be outdated: the response to an earlier write may
    /// be lost, and the watch late.
    pub is_unconditional: bool,
}

// === impl Record ===

impl Record {
    /// Our finalizer, and the annotations as they are known.
    pub(crate) fn again(attachment: &Attachment) -> Self {
        Self {
            annotations: attachment.recorded.clone(),
            is_unconditional: true,
        }
    }

    /// Our finalizer, and what a detach needs, for an attached VolumeAttachment that lost the finalizer and cannot be published:
    /// its deletion would send no unpublish, and detaches of the same volume wait for the finalizer. The Go sidecar recorded no
    /// handle.
    pub(super) fn for_detach(inputs: &AttachInputs, driver: &Driver) -> Option<Self> {
        let attachment = &*inputs.attachment;
        let mut record = Self::again(attachment);
        if attachment.recorded.handle.is_none() {
            let csi = spec(inputs)
                .ok()?
                .csi()
                .filter(|csi| *csi.driver == *driver.name)?;
            if attachment.volume_name().is_some() {
                record.annotations.handle = Some(csi.handle.clone());
                record.annotations.secret = csi.publish_secret.clone();
            }
        }
        let is_detachable = attachment.attached && attachment.recorded.node_id.is_some();
        (is_detachable && !attachment.finalizer).then_some(record)
    }
}

/// Plans the attach of `inputs.attachment`.
///
/// # Errors
///
/// A [`Refusal`] whose text belongs in `status.attachError`. The first check that fails decides,
/// in the Go sidecar's order.
pub(crate) fn attach(inputs: &AttachInputs, driver: &Driver) -> Result<AttachPlan, Refusal> {
    let attachment = &*inputs.attachment;
    let spec = spec(inputs)?;
    let volume = attachment.volume_name().and(inputs.volume.as_deref());
    if let Some(volume) = volume.filter(|volume| volume.deleting) {
        return Err(Refusal::VolumeDeleting(volume.name.clone()));
    }
    let csi = spec.csi.as_ref().map_err(Clone::clone)?;
    if *csi.driver != *driver.name {
        return Err(Refusal::ForeignVolume {
            volume_driver: csi.driver.clone(),
            attacher: driver.name.clone(),
        });
    }
    let capability = capability(spec, csi, driver)?;
    let present = node_id(inputs, driver)?;
    let secret = csi.publish_secret.clone();
    // An attached volume is republished where its pod uses it.
    let attached_to = attachment
        .recorded
        .node_id
        .as_ref()
        .filter(|_| attachment.attached);
    let target = PublishTarget {
        volume_id: csi.handle.clone(),
        node_id: attached_to.unwrap_or(present).clone(),
    };
    // The PersistentVolume was replaced by one of its name. Its access modes, attributes and Secret belong to another volume.
    if let Some(attached) = &attachment.recorded.handle
        && attachment.attached
        && target.with_volume(attached) != target
    {
        return Err(Refusal::VolumeReplaced {
            attached: attached.clone(),
            present: csi.handle.clone(),
        });
    }

    // An inline volume's specification is part of the attachment itself, so it cannot be lost.
    let annotations = Recorded {
        node_id: Some(target.node_id.clone()),
        handle: volume.map(|_| target.volume_id.clone()),
        secret: volume.and(secret.clone()),
    };
    let is_complete = attachment.finalizer && attachment.recorded == annotations;
    Ok(AttachPlan {
        // An attached volume is in use. The record alone is reason enough: another client may have removed our finalizer.
        former: former(inputs, &target, csi, spec.migrated).filter(|_| !attachment.attached),
        capability,
        read_only: csi.read_only && driver.capabilities.publish_readonly,
        volume_context: csi.attributes.clone(),
        secret,
        migrated: spec.migrated,
        // A volume that is not migrated loses our finalizer with its last VolumeAttachment, maybe concurrently.
        pv_finalizer: volume
            .filter(|volume| !volume.finalizer || volume.left_in_tree)
            .map(|volume| PvFinalizer {
                volume: volume.name.clone(),
                uid: volume.uid.clone(),
            }),
        record: (!is_complete).then_some(Record {
            annotations,
            is_unconditional: attachment.finalizer,
        }),
        target,
    })
}

/// An earlier attach may have published elsewhere: the node registered again with another id, or the PersistentVolume was
/// replaced. Overwriting the record without an unpublish would leak that publish.
fn former(
    inputs: &AttachInputs,
    wanted: &PublishTarget,
    csi: &CsiSource,
    migrated: bool,
) -> Option<DetachPlan> {
    let recorded = &inputs.attachment.recorded;
    let node_id = recorded.node_id.clone()?;
    let target = PublishTarget {
        volume_id: recorded.handle.as_ref().unwrap_or(&wanted.volume_id).clone(),
        node_id,
    };
    let csi = Some(csi).filter(|_| target.with_volume(&wanted.volume_id) == target);
    let (secret, recorded_secret) = detach::secrets(csi, recorded);
    (target != *wanted).then(|| DetachPlan {
        node: NodeState::of(inputs.node.as_deref(), &target.node_id),
        target,
        secret,
        recorded_secret,
        migrated,
    })
}
