//! What to do next, decided from the newest state alone.
//!
//! All rules about finalizers, recorded annotations, node ids and access modes live here, one
//! function per kind of work. They are pure: state goes in, a plan or a [`Refusal`] comes out, so
//! every rule is a row in a table test. Nothing of what is checked here needs a write, hence nothing
//! is written for an attachment that is refused.

mod attach;
mod capability;
mod detach;
mod pv_finalizer;
pub mod reconcile;
mod target_usage;

use std::sync::Arc;

pub use attach::{AttachPlan, PvFinalizer, Record, Stale, attach};
pub use capability::{Access, AccessMode, Capability, Unsupported};
pub use detach::{DetachOutcome, DetachPlan, PresentNodeId, UnpublishResult, detach, detach_outcome};
pub use pv_finalizer::release;
pub use target_usage::{OtherAttachment, TargetUsage, UsedBy, target_usage};

use crate::model::{
    Attachment, CsiSource, Driver, Node, SourceFault, Untranslatable, Volume, VolumeSource, VolumeSpec,
};

/// What is known when one attachment is decided.
#[derive(Clone, Debug)]
pub struct AttachInputs {
    /// The attachment, as new as we know it.
    pub attachment: Arc<Attachment>,
    /// The PersistentVolume that it names, if we know it.
    pub volume: Option<Arc<Volume>>,
    /// The CSINode that it names, if we know it.
    pub node: Option<Arc<Node>>,
}

/// The work that an attachment is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// ControllerPublishVolume, then `status.attached`.
    Attach,
    /// ControllerUnpublishVolume, then our finalizer comes off.
    Detach,
}

/// Why an attachment cannot be worked on as things stand. The texts are those of the Go sidecar
/// where it has the case too: people and alerts match on them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `spec.source` names nothing that can be attached.
    #[error(transparent)]
    Source(#[from] SourceFault),
    /// No such PersistentVolume.
    #[error("persistentvolume {0:?} not found")]
    VolumeNotFound(Arc<str>),
    /// The PersistentVolume is being deleted.
    #[error("PersistentVolume {0:?} is marked for deletion")]
    VolumeDeleting(Arc<str>),
    /// An in-tree volume of which the CSI driver that took over has no name.
    #[error(transparent)]
    Untranslatable(Box<Untranslatable>),
    /// Neither a CSI volume nor one that is migrated to CSI.
    #[error("pv spec contained non-csi source that was not migrated")]
    NotCsi,
    /// The volume is another driver's: publishing its handle could hit any volume of ours.
    #[error(
        "the volume belongs to CSI driver {volume_driver:?}, but the VolumeAttachment's attacher is {attacher:?}"
    )]
    ForeignVolume {
        /// Driver in the volume's source.
        volume_driver: String,
        /// Driver that we serve.
        attacher: Arc<str>,
    },
    /// The access modes have no CSI equivalent.
    #[error(transparent)]
    Capability(#[from] Unsupported),
    /// No such CSINode.
    #[error("csinode.storage.k8s.io {0:?} not found")]
    NodeNotFound(Arc<str>),
    /// The driver is not registered on the node.
    #[error("CSINode {node} does not contain driver {driver}")]
    DriverNotOnNode {
        /// The node.
        node: Arc<str>,
        /// The driver.
        driver: Arc<str>,
    },
}

/// What the attachment is waiting for, if for anything, with a driver that publishes volumes or (if
/// `publishes` is false) one that has no such calls.
///
/// An attachment that is being deleted is detached when our finalizer is on it, whatever its status
/// says: the finalizer is stored before the first publish call, so without it nothing was published,
/// and with it even an attach that failed or timed out may have happened at the array.
///
/// An attached one that lacks our finalizer but not the record of a publish call lost the finalizer
/// while the driver had no calls, or to somebody's hand. It must have it back, or its volume would
/// stay published when it is deleted; attaching it again, which the driver answers as before, does that.
/// So must one whose status tells an error besides: the last attempt to attach it again did not succeed,
/// or was cut short by a crash, and the volume may be nowhere.
pub fn operation(attachment: &Attachment, publishes: bool) -> Option<Operation> {
    let unguarded = !attachment.finalizer && attachment.recorded.node_id.is_some();
    match (attachment.deleting, attachment.finalizer, attachment.attached) {
        (true, true, _) => Some(Operation::Detach),
        (true, false, _) => None,
        (false, _, false) => Some(Operation::Attach),
        (false, finalizer, true) => {
            let failed = attachment.attach_error.is_some();
            let again = if publishes { unguarded || failed } else { finalizer };
            again.then_some(Operation::Attach)
        }
    }
}

/// Whether an attachment that was let go of still says that it is attached. Whoever took the finalizer off
/// died before he wrote the status, and the finalizers of others keep the object.
///
/// That the volume was unpublished is likely, not certain: the finalizer may have gone by somebody's hand.
pub fn has_stale_status(attachment: &Attachment) -> bool {
    attachment.deleting && !attachment.finalizer && attachment.says_attached()
}

/// The specification of the volume that the attachment names.
fn spec(facts: &AttachInputs) -> Result<&VolumeSpec, Refusal> {
    use crate::model::Source;
    match &facts.attachment.source {
        Source::Invalid(fault) => Err((*fault).into()),
        Source::Inline(spec) => Ok(spec),
        Source::Volume(name) => match &facts.volume {
            Some(volume) => Ok(&volume.spec),
            None => Err(Refusal::VolumeNotFound(name.clone())),
        },
    }
}

/// The volume as a CSI driver knows it.
fn csi(spec: &VolumeSpec) -> Result<&CsiSource, Refusal> {
    match &spec.source {
        VolumeSource::Csi(csi) | VolumeSource::Migrated(csi) => Ok(csi),
        VolumeSource::Untranslatable(volume) => Err(Refusal::Untranslatable(volume.clone())),
        VolumeSource::Other => Err(Refusal::NotCsi),
    }
}

/// The driver's id of the node that the attachment names, as its CSINode tells it today.
fn node_id<'f>(facts: &'f AttachInputs, driver: &Driver) -> Result<&'f Arc<str>, Refusal> {
    let name = &facts.attachment.node;
    let node = facts
        .node
        .as_ref()
        .ok_or_else(|| Refusal::NodeNotFound(name.clone()))?;
    node.id.as_ref().ok_or_else(|| Refusal::DriverNotOnNode {
        node: name.clone(),
        driver: driver.name.clone(),
    })
}

#[cfg(test)]
pub(crate) mod tests;
