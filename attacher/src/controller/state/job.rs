//! What the state hands out, and what it gets back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Attachment, PublishTarget, SecretRef, Volume};
use crate::plan::{AttachInputs, Operation};
use crate::workqueue::Class;

/// One piece of work.
#[derive(Debug)]
pub enum Job {
    /// Attach or detach.
    Attachment {
        /// Which of the two.
        wanted: Operation,
        /// The newest state.
        facts: AttachInputs,
        /// The driver's answer from an earlier run, if only its write is left to do.
        answer: Option<PendingStatusWrite>,
        /// Whether the attachment's state asks for nothing and a survey, or the driver's return with more
        /// capabilities, does.
        repair: bool,
    },
    /// Take our finalizer off a PersistentVolume.
    Release {
        /// The volume.
        volume: Arc<Volume>,
    },
    /// Unpublish a target whose VolumeAttachment is gone.
    Unpublish(Arc<AbandonedTarget>),
    /// Record what a PersistentVolume was, which is gone, on attachments that do not tell.
    RecordVolumeId {
        /// The volume.
        volume: Arc<Volume>,
        /// The attachments.
        attachments: Vec<Arc<Attachment>>,
    },
}

/// A target that must be unpublished although its VolumeAttachment is gone: the attachment was deleted during its
/// publish, so that no finalizer says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbandonedTarget {
    /// What to unpublish from where.
    pub target: PublishTarget,
    /// The Secret to send.
    pub secret: Option<SecretRef>,
    /// Whether the volume is an in-tree one that is migrated to CSI.
    pub migrated: bool,
    /// The attachment that is gone.
    pub attachment: Arc<Attachment>,
}

/// A successful answer of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PendingStatusWrite {
    /// ControllerPublishVolume succeeded.
    Published {
        /// For this volume and node.
        target: PublishTarget,
        /// With this `publish_context`.
        context: BTreeMap<String, String>,
    },
    /// ControllerUnpublishVolume succeeded.
    Unpublished,
    /// ListVolumes names the volume where it should be, though an attempt to publish it again failed.
    Listed,
}

// === impl PendingStatusWrite ===

impl PendingStatusWrite {
    /// Whether it holds only for the driver that gave it. One that came back may have forgotten what was published,
    /// or give another context; what was unpublished stays so until somebody publishes it.
    pub(super) fn is_of_its_time(&self) -> bool {
        match self {
            Self::Published { .. } => true,
            Self::Unpublished | Self::Listed => false,
        }
    }
}

/// How a job ended.
#[derive(Debug)]
pub struct Report {
    /// The object that it was about.
    pub subject: Subject,
    /// What came of it.
    pub outcome: Outcome,
}

/// The object of a job.
#[derive(Clone, Debug)]
pub enum Subject {
    /// Of [`Job::Attachment`].
    Attachment(Operation, Arc<Attachment>),
    /// Of [`Job::Unpublish`].
    Target(Arc<AbandonedTarget>),
    /// Of [`Job::Release`] and [`Job::RecordVolumeId`].
    Volume(Arc<Volume>),
}

/// What came of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing left to do.
    Done,
    /// It is to be tried again.
    Failed {
        /// How to wait for that.
        class: Class,
        /// The gRPC code, if the driver answered with one.
        code: Option<i32>,
        /// What the driver answered, if that is all that is known and only its write failed.
        answer: Option<PendingStatusWrite>,
        /// What went wrong, for people.
        message: Arc<str>,
        /// The least time before the next attempt, if the API server asked for it.
        retry_after: Option<Duration>,
    },
}

// === impl Job ===

impl Job {
    /// What the job is about.
    pub fn subject(&self) -> Subject {
        match self {
            Self::Attachment { wanted, facts, .. } => Subject::Attachment(*wanted, facts.attachment.clone()),
            Self::Unpublish(abandoned) => Subject::Target(abandoned.clone()),
            Self::Release { volume } | Self::RecordVolumeId { volume, .. } => Subject::Volume(volume.clone()),
        }
    }
}
