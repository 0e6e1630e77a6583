//! Attach: what to check, what to store first, and what to send.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::capability::{Capability, capability};
use super::{AttachInputs, Refusal, csi, node_id, spec};
use crate::model::{Attachment, CsiSource, Driver, PublishTarget, Recorded, SecretRef, Uid, Volume};

/// Everything an attach needs; reading one is enough to know which requests will be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachPlan {
    /// What to publish where.
    pub target: PublishTarget,
    /// Another place where it may still be published, to be unpublished before anything else.
    pub stale: Option<Stale>,
    /// Where to publish instead when the driver does not know the node id in `target`.
    pub other_node_id: Option<Arc<str>>,
    /// CSI `volume_capability`.
    pub capability: Capability,
    /// CSI `readonly`.
    pub read_only: bool,
    /// CSI `volume_context`.
    pub volume_context: BTreeMap<String, String>,
    /// The Secret to send.
    pub secret: Option<SecretRef>,
    /// Whether the volume is an in-tree one that is migrated to CSI.
    pub migrated: bool,
    /// The PersistentVolume that lacks our finalizer, or is about to lose it.
    pub pv_finalizer: Option<PvFinalizer>,
    /// What the VolumeAttachment still lacks.
    pub record: Option<Record>,
}

/// A publish of an earlier attempt, elsewhere than where the volume is wanted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// What to unpublish from where.
    pub target: PublishTarget,
    /// The Secret to send.
    pub secret: Option<SecretRef>,
}

/// A PersistentVolume that must get our finalizer, so that it outlives its attachments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PvFinalizer {
    /// Name of the PersistentVolume.
    pub volume: Arc<str>,
    /// Its UID.
    pub uid: Uid,
}

/// What must stand on a VolumeAttachment before the publish call is sent: our finalizer and the
/// annotations that let a later process undo the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The annotations as they shall be; `None` removes one.
    pub annotations: Recorded,
    /// Whether the write is to name what the object has already, too, as far as is known. What is known may be
    /// outdated: the answer to an earlier write of a record may be lost, and the watch late.
    pub whole: bool,
}

/// Plans the attach of `facts.attachment`.
///
/// # Errors
///
/// A [`Refusal`] whose text belongs in `status.attachError`. The first check that fails decides,
/// in the Go sidecar's order.
pub fn attach(facts: &AttachInputs, driver: &Driver) -> Result<AttachPlan, Refusal> {
    let attachment = &*facts.attachment;
    let spec = spec(facts)?;
    let volume = attachment.volume_name().and(facts.volume.as_deref());
    if let Some(volume) = volume.filter(|volume| volume.deleting) {
        return Err(Refusal::VolumeDeleting(volume.name.clone()));
    }
    let csi = csi(spec)?;
    if *csi.driver != *driver.name {
        return Err(Refusal::ForeignVolume {
            volume_driver: csi.driver.clone(),
            attacher: driver.name.clone(),
        });
    }
    let capability = capability(spec, driver)?;
    let today = node_id(facts, driver)?;
    let (target, other_node_id) = target(attachment, csi, today);
    // The PersistentVolume may have been replaced by one of its name. What is attached is published again as it was
    // recorded, and with nothing of another volume's: its detach would send that volume's credentials.
    let is_replaced = target.volume_id != csi.handle;
    let secret = match is_replaced {
        true => attachment.recorded.secret.clone(),
        false => csi.publish_secret.clone(),
    };
    let volume_context = match is_replaced {
        true => BTreeMap::new(),
        false => csi.attributes.clone(),
    };

    // An inline volume's specification stands on the attachment itself: nothing of it can get lost.
    let annotations = Recorded {
        node_id: Some(target.node_id.clone()),
        handle: volume.map(|_| target.volume_id.clone()),
        secret: volume.and(secret.clone()),
    };
    let complete = attachment.finalizer && attachment.recorded == annotations;
    Ok(AttachPlan {
        // Without our finalizer nothing was published, whoever wrote the annotations. And what is
        // attached is in use.
        stale: stale(&attachment.recorded, &target, csi)
            .filter(|_| attachment.finalizer && !attachment.attached),
        other_node_id,
        capability,
        read_only: csi.read_only && driver.capabilities.publish_readonly,
        volume_context,
        secret,
        migrated: spec.is_migrated(),
        pv_finalizer: volume.and_then(pv_finalizer),
        record: (!complete).then_some(Record {
            annotations,
            whole: attachment.finalizer,
        }),
        target,
    })
}

/// Where to publish. An attachment that is attached already is published again where it was: to take
/// a volume from under those who use it is nothing that a list, or a node that changed its name, can ask
/// for. Only a driver that knows no such node makes it today's.
fn target(attachment: &Attachment, csi: &CsiSource, today: &Arc<str>) -> (PublishTarget, Option<Arc<str>>) {
    let recorded = Some(&attachment.recorded).filter(|_| attachment.attached);
    let handle = recorded.and_then(|recorded| recorded.handle.as_ref());
    let node_id = recorded.and_then(|recorded| recorded.node_id.as_ref());
    let target = PublishTarget {
        volume_id: handle.unwrap_or(&csi.handle).clone(),
        node_id: node_id.unwrap_or(today).clone(),
    };
    let other = (target.node_id != *today).then(|| today.clone());
    (target, other)
}

fn pv_finalizer(volume: &Volume) -> Option<PvFinalizer> {
    // Off a volume left in tree our finalizer comes with its last attachment, maybe at this very moment.
    (!volume.finalizer || volume.left_in_tree).then(|| PvFinalizer {
        volume: volume.name.clone(),
        uid: volume.uid.clone(),
    })
}

/// An earlier attempt for the same attachment may have published elsewhere: the node was
/// re-registered with another id, or the PersistentVolume was replaced. Overwriting the record
/// without detaching would leak that publish for ever.
fn stale(recorded: &Recorded, wanted: &PublishTarget, csi: &CsiSource) -> Option<Stale> {
    let node_id = recorded.node_id.clone()?;
    let (handle, secret) = match &recorded.handle {
        Some(handle) if *handle != wanted.volume_id => (handle.clone(), recorded.secret.clone()),
        Some(_) | None => (wanted.volume_id.clone(), csi.publish_secret.clone()),
    };
    let target = PublishTarget {
        volume_id: handle,
        node_id,
    };
    (target != *wanted).then_some(Stale { target, secret })
}
