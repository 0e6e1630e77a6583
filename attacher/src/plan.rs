//! Plans: pure functions from the newest objects to the requests of a sync.
//!
//! All rules about finalizers, recorded annotations, node ids and access modes are here, one function per operation, and each
//! is a row in a table test. A plan is made before the first write, so nothing is written for a VolumeAttachment that is
//! refused.

mod attach;
mod capability;
mod command;
mod detach;
mod evidence;
mod machine;
mod progress;
mod proof;
pub mod reconcile;
mod target_usage;
mod view;

use std::sync::Arc;

pub use attach::Record;
pub(crate) use attach::{AttachPlan, PvFinalizer, attach};
pub use capability::Unsupported;
pub(crate) use command::{Command, Next, Stop, Unproven};
pub(crate) use detach::{DetachPlan, detach};
pub(crate) use evidence::{DetachEvidence, PublishEnd};
pub(crate) use machine::next;
pub(crate) use progress::{Failure, Orphan, Progress, Published};
pub use proof::Proof;
pub(crate) use proof::{
    Answers, Decision, Evidence, ListEvidence, NodeState, TargetEvidence, UnpublishResult, decide,
};
pub(crate) use target_usage::{OtherAttachment, TargetUsage, target_usage};
pub(crate) use view::{Subject, SyncContext, View};

use crate::model::{Attachment, Driver, NoCsiSource, Node, Source, SourceFault, Volume, VolumeSpec};

/// The objects that a plan is made from.
#[derive(Clone, Debug)]
pub struct AttachInputs {
    /// The VolumeAttachment.
    pub attachment: Arc<Attachment>,
    /// Its PersistentVolume, if it is known.
    pub volume: Option<Arc<Volume>>,
    /// Its CSINode, if it is known.
    pub node: Option<Arc<Node>>,
}

/// The operation that a VolumeAttachment needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// ControllerPublishVolume, then `status.attached`.
    Attach,
    /// ControllerUnpublishVolume, then the removal of our finalizer.
    Detach,
}

/// The reason that a plan is impossible. The texts are the Go sidecar's if it has the case, too, because users and alerts
/// match on them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each has its text")]
pub enum Refusal {
    #[error(transparent)]
    Source(#[from] SourceFault),
    #[error("persistentvolume {0:?} not found")]
    VolumeNotFound(Arc<str>),
    #[error(
        "PersistentVolume {0:?} was created after the VolumeAttachment, which may be attached to an earlier volume of that name and \
         does not record its handle: write that to the annotation {annotation}, so that it can be detached",
        annotation = crate::model::attachment::VOLUME_HANDLE_ANNOTATION
    )]
    VolumeRecreated(Arc<str>),
    #[error("PersistentVolume {0:?} is marked for deletion")]
    VolumeDeleting(Arc<str>),
    #[error(
        "the volume {attached:?} is attached, and the PersistentVolume, which was replaced, names volume {present:?} now"
    )]
    VolumeReplaced { attached: Arc<str>, present: Arc<str> },
    #[error(transparent)]
    NoCsiSource(#[from] NoCsiSource),
    /// The volume is another driver's: its handle could name any volume of ours.
    #[error(
        "the volume belongs to CSI driver {volume_driver:?}, but the VolumeAttachment's attacher is {attacher:?}"
    )]
    ForeignVolume {
        volume_driver: String,
        attacher: Arc<str>,
    },
    #[error(transparent)]
    Capability(#[from] Unsupported),
    #[error("csinode.storage.k8s.io {0:?} not found")]
    NodeNotFound(Arc<str>),
    #[error("CSINode {node} does not contain driver {driver}")]
    DriverNotOnNode { node: Arc<str>, driver: Arc<str> },
}

// === impl Operation ===

impl Operation {
    /// Whether the operation is a repair of a VolumeAttachment in this state: a republish, or an unpublish after our finalizer
    /// was removed. No pod waits for it.
    pub(crate) fn is_repair(self, attachment: &Attachment) -> bool {
        match self {
            Self::Attach => attachment.attached && !attachment.deleting,
            Self::Detach => attachment.deleting && !attachment.finalizer,
        }
    }
}

/// The operation that the VolumeAttachment needs, if any. `publishes` says whether the driver has publish calls.
///
/// One that is being deleted is detached if it has our finalizer, whatever its status: the finalizer is stored before the
/// first publish, so without it nothing was published, and with it even a failed attach may have been executed.
///
/// An attached one without our finalizer lost it to an edit, or was attached without a call, as the driver had no publish calls.
/// It is attached again, which is idempotent and adds finalizer and record; otherwise its volume would stay published after its
/// deletion. One with an error is attached again, too: the last republish failed or was interrupted.
pub(crate) fn operation(attachment: &Attachment, publishes: bool) -> Option<Operation> {
    match (attachment.deleting, attachment.finalizer, attachment.attached) {
        (true, true, _) => Some(Operation::Detach),
        (true, false, _) => None,
        (false, _, false) => Some(Operation::Attach),
        (false, finalizer, true) => {
            let again = publishes && (!finalizer || attachment.attach_error.is_some());
            again.then_some(Operation::Attach)
        }
    }
}

/// The reason that the needed operation is impossible; `None` if it can be planned or none is needed.
pub fn refusal(inputs: &AttachInputs, driver: &Driver) -> Option<Refusal> {
    match operation(&inputs.attachment, driver.capabilities.publish)? {
        Operation::Attach => attach(inputs, driver).err(),
        Operation::Detach => detach(inputs, driver).err(),
    }
}

/// Whether the status still says attached although our finalizer was removed: the process crashed before it wrote the status,
/// and other finalizers keep the object.
///
/// The volume is likely, but not certainly unpublished: the finalizer may have been removed by an edit.
pub(crate) fn has_outdated_status(attachment: &Attachment) -> bool {
    attachment.deleting && !attachment.finalizer && attachment.has_attached_status()
}

/// Whether our finalizer must be removed: no VolumeAttachment of ours names the volume, and none will, as it is being deleted
/// or left to the in-tree plugin. Migration may have been rolled back, and the volume's deletion must not wait for us.
///
/// Otherwise the finalizer stays after a detach, since the next attach would add it again. VolumeAttachments of other drivers
/// do not count.
pub(crate) fn removes_pv_finalizer(volume: &Volume, attachments: usize) -> bool {
    volume.finalizer && (volume.deleting || volume.left_in_tree) && attachments == 0
}

/// Whether the VolumeAttachment lacks the handle that this PersistentVolume has.
pub(crate) fn lacks_handle_of(volume: &Volume, attachment: &Attachment) -> bool {
    lacks_handle(attachment) && volume.spec.csi.is_ok() && !attachment.may_predate(volume)
}

/// Whether the volume may be published for the VolumeAttachment although its handle is not recorded: the Go sidecar records only
/// the node id.
pub(crate) fn lacks_handle(attachment: &Attachment) -> bool {
    attachment.finalizer && attachment.recorded.handle.is_none() && attachment.volume_name().is_some()
}

fn spec(inputs: &AttachInputs) -> Result<&VolumeSpec, Refusal> {
    match &inputs.attachment.source {
        Source::Invalid(fault) => Err((*fault).into()),
        Source::Inline(spec) => Ok(spec),
        Source::Volume(name) => match &inputs.volume {
            Some(volume) if inputs.attachment.may_predate(volume) => {
                Err(Refusal::VolumeRecreated(name.clone()))
            }
            Some(volume) => Ok(&volume.spec),
            None => Err(Refusal::VolumeNotFound(name.clone())),
        },
    }
}

fn node_id<'f>(inputs: &'f AttachInputs, driver: &Driver) -> Result<&'f Arc<str>, Refusal> {
    let name = &inputs.attachment.node;
    let node = inputs
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
