//! What a harness observes, without any type of a Kubernetes or CSI client.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// A name, UID or ID.
pub type Name = Arc<str>;

/// A volume at the driver and the driver's ID of a node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// The driver's ID of the volume.
    pub volume: Name,
    /// The driver's ID of the node.
    pub node: Name,
}

/// A version of a VolumeAttachment of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attachment {
    /// `metadata.name`.
    pub name: Name,
    /// `metadata.uid`.
    pub uid: Name,
    /// `spec.nodeName`.
    pub node: Name,
    /// `spec.source.persistentVolumeName`.
    pub volume: Name,
    /// When its deletion was requested, as far as the observer knows; the API server rounds it down to seconds.
    pub deleting: Option<std::time::Duration>,
    /// Whether it has the attacher's finalizer.
    pub finalizer: bool,
    /// The node ID in its annotations.
    pub node_id: Option<Name>,
    /// The volume ID in its annotations.
    pub handle: Option<Name>,
    /// `status.attached`.
    pub attached: bool,
    /// `status.attachmentMetadata`.
    pub metadata: BTreeMap<String, String>,
    /// Message of `status.attachError`.
    pub attach_error: Option<String>,
    /// Message of `status.detachError`.
    pub detach_error: Option<String>,
}

/// A version of a PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// `metadata.name`.
    pub name: Name,
    /// The driver's ID of the volume.
    pub handle: Name,
    /// Whether its driver is another one.
    pub foreign: bool,
    /// Whether its access modes allow one node only.
    pub single_node: bool,
    /// Whether it is deleted, or its deletion was requested.
    pub deleting: bool,
    /// Whether it refers to a publish Secret.
    pub secret: bool,
    /// How many times it has the attacher's finalizer.
    pub finalizers: usize,
    /// The ControllerPublishVolume request that its spec asks for.
    pub request: Option<Arc<PublishRequest>>,
}

/// The fields of a ControllerPublishVolume request that follow from the PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublishRequest {
    /// Name of the CSI access mode, such as `SINGLE_NODE_WRITER`.
    pub access_mode: String,
    /// Whether it is published as a block device.
    pub block: bool,
    /// `fs_type` of a mounted volume.
    pub fs_type: String,
    /// `mount_flags` of a mounted volume.
    pub mount_flags: Vec<String>,
    /// `readonly`.
    pub readonly: bool,
    /// `volume_context`.
    pub context: BTreeMap<String, String>,
}

/// A version of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `metadata.name`.
    pub name: Name,
    /// `spec.nodeName`.
    pub node: Option<Name>,
    /// The PersistentVolume of its claim.
    pub volume: Option<Name>,
    /// Whether it runs and is not being deleted.
    pub running: bool,
}

/// The driver's registration in a CSINode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The entry of the driver has this node ID.
    Id(Name),
    /// The CSINode has no entry of the driver: its pod on this node restarts.
    NoDriver,
    /// The CSINode does not exist.
    NoCsiNode,
}

/// A call of the attacher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// ControllerPublishVolume.
    Publish,
    /// ControllerUnpublishVolume.
    Unpublish,
}

/// The begin of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of the call, unique in the history.
    pub number: u64,
    /// The attacher process that sent it, if known.
    pub by: Option<Name>,
    /// The RPC.
    pub method: Method,
    /// Its target; an unpublish with an empty node ID is for all nodes.
    pub target: Target,
    /// Whether it has secrets; `None`: unknown.
    pub secret: Option<bool>,
    /// Further fields of a publish, if known.
    pub request: Option<PublishRequest>,
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Name of the gRPC code in the CSI specification, such as `NOT_FOUND`.
    pub code: Name,
    /// The error's message.
    pub message: String,
    /// `publish_context` of a publish.
    pub context: BTreeMap<String, String>,
}

/// A complete list of the driver's volumes: the nodes of each volume, `None` for an entry without a status.
pub type List = BTreeMap<Name, Option<Vec<Name>>>;

/// A write that the API server has executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The attacher process that sent it, if known.
    pub by: Option<Name>,
    /// Kind and name of the object.
    pub object: String,
    /// Whether it is an empty patch.
    pub empty: bool,
    /// Whether it changed the object.
    pub changed: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A VolumeAttachment was created or changed.
    Attachment(Arc<Attachment>),
    /// A VolumeAttachment was deleted.
    AttachmentGone(Name),
    /// Another client removed the finalizer of the VolumeAttachment with this UID.
    FinalizerTaken(Name),
    /// A PersistentVolume was created or changed.
    Volume(Arc<Volume>),
    /// A PersistentVolume was deleted.
    VolumeGone(Name),
    /// The driver deleted the volume with this ID.
    VolumeDeleted(Name),
    /// A pod was created or changed.
    Pod(Arc<Pod>),
    /// A pod was deleted.
    PodGone(Name),
    /// A Node is ready and in service, or not.
    Node {
        /// Name of the Node.
        node: Name,
        /// Whether it is ready and has no out-of-service taint.
        healthy: bool,
    },
    /// The volumes (the driver's IDs) that the status of a Node (its name) lists as attached.
    VolumesAttached(Name, BTreeSet<Name>),
    /// The registration of the driver in a CSINode changed.
    CsiNode(Name, Registration),
    /// The controller force-detaches from now on: the volume (the driver's ID) from the node (its name).
    Forced(Name, Name),
    /// The driver has, or lacks, PUBLISH_UNPUBLISH_VOLUME from now on.
    PublishCapability(bool),
    /// A call arrived at the driver.
    CallBegan(Arc<Call>),
    /// The client got the answer to the call with this number, or cancelled it (code `CANCELLED`).
    CallEnded(u64, Answer),
    /// A round of ListVolumes began.
    ListBegan(u64),
    /// A round of ListVolumes ended with a complete list.
    ListEnded(u64, List),
    /// The array has the volume published to the node from now on, or no longer.
    Array(Target, bool),
    /// A volume (the driver's ID) is mounted on a machine (the driver's node ID) from now on, or no longer.
    Mounted(Target, bool),
    /// The holder of the lease from now on.
    Lease(Option<Name>),
    /// An attacher process ended; its calls ended with it.
    ProcessEnded(Name),
    /// The API server executed a write of the attacher.
    Write(Write),
    /// A fault begins or ends, or a component is restarted: operations that it can concern are not uneventful.
    Fault(String),
    /// All faults have ended, and none begins until the end.
    Healed,
    /// A component of the harness panicked.
    Panicked(String),
    /// States of objects may be missing from here on.
    GapBegan(String),
    /// All objects were listed after the gap, and later states are complete.
    GapEnded(String),
    /// Text that a program wrote: its source and content.
    Text(String, Arc<str>),
    /// No fault is active, and the attacher had enough time.
    Settled,
    /// All VolumeAttachments and volumes were deleted, and the attacher had enough time.
    CleanedUp,
}

// === impl Target ===

impl Target {
    /// A volume on a node.
    pub fn new(volume: &str, node: &str) -> Self {
        Self {
            volume: volume.into(),
            node: node.into(),
        }
    }

    /// Whether this call's target includes `other`: an unpublish without a node ID includes all nodes.
    pub fn includes(&self, other: &Self) -> bool {
        self.volume == other.volume && (self.node.is_empty() || self.node == other.node)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {} on node {}", self.volume, self.node)
    }
}

// === impl Method ===

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Publish => "ControllerPublishVolume",
            Self::Unpublish => "ControllerUnpublishVolume",
        })
    }
}

// === impl Attachment ===

impl Attachment {
    /// Why it has not settled: neither attached or gone, nor with an error that names a cause.
    pub fn unsettled(&self) -> Option<&'static str> {
        let names_cause = |error: &Option<String>| error.as_ref().is_some_and(|error| !error.is_empty());
        if self.deleting.is_some() {
            let waits = self.finalizer && !names_cause(&self.detach_error);
            return waits.then_some("it is being deleted and has no detachError");
        }
        let waits = !self.attached && !names_cause(&self.attach_error);
        waits.then_some("it is not attached and has no attachError")
    }
}

impl fmt::Display for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "VolumeAttachment {} ({} to {})",
            self.name, self.volume, self.node
        )?;
        write!(f, " attached={} finalizer={}", self.attached, self.finalizer)?;
        if let Some(id) = &self.node_id {
            write!(f, " nodeID={id}")?;
        }
        if self.deleting.is_some() {
            f.write_str(" deleting")?;
        }
        for (field, error) in [
            ("attachError", &self.attach_error),
            ("detachError", &self.detach_error),
        ] {
            if let Some(error) = error {
                write!(f, " {field}={error:?}")?;
            }
        }
        Ok(())
    }
}

// === impl Observation ===

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Attachment(attachment) => attachment.fmt(f),
            Self::AttachmentGone(name) => write!(f, "VolumeAttachment {name} is deleted"),
            Self::FinalizerTaken(uid) => write!(f, "the finalizer of {uid} is removed by another client"),
            Self::Volume(volume) => write!(
                f,
                "PersistentVolume {} (handle {}) has {} finalizers of the attacher",
                volume.name, volume.handle, volume.finalizers
            ),
            Self::VolumeGone(name) => write!(f, "PersistentVolume {name} is deleted"),
            Self::VolumeDeleted(volume) => write!(f, "the driver deleted volume {volume}"),
            Self::Pod(pod) => {
                let node = pod.node.as_deref().unwrap_or("no node");
                write!(f, "pod {} on {node} running={}", pod.name, pod.running)
            }
            Self::PodGone(name) => write!(f, "pod {name} is deleted"),
            Self::Node { node, healthy } => write!(f, "Node {node} healthy={healthy}"),
            Self::VolumesAttached(node, volumes) => write!(f, "Node {node} volumesAttached={volumes:?}"),
            Self::CsiNode(node, registration) => write!(f, "CSINode {node}: {registration:?}"),
            Self::Forced(volume, node) => write!(f, "the controller force-detaches {volume} from {node}"),
            Self::PublishCapability(has) => write!(f, "PUBLISH_UNPUBLISH_VOLUME={has}"),
            Self::CallBegan(call) => write!(f, "call {}: {} of {}", call.number, call.method, call.target),
            Self::CallEnded(number, answer) => {
                write!(f, "call {number}: {} {}", answer.code, answer.message)
            }
            Self::ListBegan(round) => write!(f, "ListVolumes round {round} begins"),
            Self::ListEnded(round, list) => {
                write!(f, "ListVolumes round {round} lists {} volumes", list.len())
            }
            Self::Array(target, true) => write!(f, "the array has published {target}"),
            Self::Array(target, false) => write!(f, "the array has unpublished {target}"),
            Self::Mounted(target, mounted) => write!(f, "{target}: mounted={mounted}"),
            Self::Lease(holder) => write!(f, "the lease is held by {}", holder.as_deref().unwrap_or("none")),
            Self::ProcessEnded(process) => write!(f, "process {process} ended"),
            Self::Write(write) => write!(
                f,
                "write to {} empty={} changed={}",
                write.object, write.empty, write.changed
            ),
            Self::Fault(what) => write!(f, "fault: {what}"),
            Self::Healed => f.write_str("all faults have ended"),
            Self::Panicked(component) => write!(f, "{component} panicked"),
            Self::GapBegan(what) => write!(f, "gap in the record: {what}"),
            Self::GapEnded(what) => write!(f, "the record is complete again: {what}"),
            // The text may have a secret.
            Self::Text(source, _) => write!(f, "output of {source}"),
            Self::Settled => f.write_str("no fault is active, and the attacher had enough time"),
            Self::CleanedUp => f.write_str("everything was deleted, and the attacher had enough time"),
        }
    }
}
