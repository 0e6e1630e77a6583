//! What this process knows beyond the objects. A crash loses it, and the next process recovers from the objects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use super::{Command, DetachPlan, NodeState, Proof, UnpublishResult, View};
use crate::model::{
    Attachment, Capabilities, Node, PublishTarget, Recorded, SecretRef, Secrets, Uid, Volume,
};

/// What this process knows about one VolumeAttachment or one orphan beyond the objects. A crash is `Progress::default()`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Progress {
    /// A publish whose status is not written yet. Ends with the status, an unpublish of its target, the driver's session, and
    /// objects that need another publish.
    pub(crate) published: Option<Published>,
    /// Its targets are unpublished, by OK alone, so this stays true. Ends when its node registers an id that it does not cover.
    pub(crate) proof: Option<Proof>,
    /// A publish that no status shows, and that may have taken effect. Ends with the status or a proof; becomes an orphan if the
    /// VolumeAttachment is deleted.
    pub(crate) uncertain: Option<Orphan>,
    /// The response to a write of another target into the record may be lost. Ends when a response shows the record.
    pub(crate) is_record_uncertain: bool,
    /// Whether the API server answered a request about the VolumeAttachment since the watch added it. A watch that goes back past a
    /// deletion adds a deleted one again, and only a live answer distinguishes it from one whose DELETED event was stray. Kept with the
    /// object, it needs no memory of deleted UIDs; the record's write is such an answer, so that an uneventful attach needs no
    /// read. Ends when the object leaves the store, and with a success.
    pub(crate) is_confirmed: bool,
    /// Whether `status.attachError` only says that an earlier attach's target is being unpublished, so that its end is no recovery.
    /// Ends when an attach fails.
    pub(crate) has_undo_error_alone: bool,
    /// Ends with the sync.
    pub(crate) sync: SyncProgress,
}

/// What a sync knows from its own requests and calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SyncProgress {
    /// The driver's session and its capabilities.
    pub(crate) driver: Option<(Option<Instant>, Capabilities)>,
    /// Whether the API server returned the VolumeAttachment, so that the store is not outdated.
    pub(crate) is_attachment_read: bool,
    /// Other VolumeAttachments that a live read showed.
    pub(crate) others_read: Vec<Uid>,
    /// The result of a live read of the PersistentVolume that the store lacks.
    pub(crate) volume: Option<Option<Arc<Volume>>>,
    /// Whether a live read found the CSINode.
    pub(crate) node_exists: Option<bool>,
    /// The Secrets that were read, with their content if they exist and may be read.
    pub(crate) secrets: Vec<(SecretRef, Option<Secrets>)>,
    /// The record that was sent last.
    pub(crate) record: Option<Recorded>,
    /// The PersistentVolume that got our finalizer.
    pub(crate) pv_finalizer: Option<Uid>,
    /// Whether an attachError is written in the version that the unpublish of an earlier attach's target rests on.
    pub(crate) is_undo_saved: bool,
    /// The driver's answers to unpublishes.
    pub(crate) unpublished: Vec<(PublishTarget, UnpublishResult)>,
    /// The last of them that does not end the sync, as another proof may outweigh it.
    pub(crate) failed: Option<Failure>,
    /// Whether a write of a detach was answered.
    pub(crate) wrote: bool,
    pub(crate) is_done: bool,
}

/// A call that failed, for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: Option<i32>,
    pub(crate) message: String,
}

/// A successful ControllerPublishVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    pub(crate) target: PublishTarget,
    /// CSI `publish_context`.
    pub(crate) context: BTreeMap<String, String>,
    /// The number of the connection before the call. A restarted driver may have lost the publish, or return another context.
    pub(crate) connection: u64,
}

/// A target that may be published although no VolumeAttachment records it, so that no finalizer protects the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Orphan {
    pub(crate) target: PublishTarget,
    pub(crate) secret: Option<SecretRef>,
    /// Whether the volume is an in-tree one that is migrated to CSI.
    pub(crate) migrated: bool,
    /// The VolumeAttachment whose attach published it.
    pub(crate) attachment: Arc<Attachment>,
}

// === impl Orphan ===

impl Orphan {
    /// The detach of its target from the node in its present state.
    pub(crate) fn plan(&self, node: Option<&Node>) -> DetachPlan {
        DetachPlan {
            target: self.target.clone(),
            node: NodeState::of(node, &self.target.node_id),
            secret: self.secret.clone(),
            recorded_secret: None,
            migrated: self.migrated,
        }
    }

    /// Identifies it beside VolumeAttachments, also beside the one that published it, which may use the volume again.
    pub(crate) fn uid(&self) -> Uid {
        let PublishTarget { volume_id, node_id } = &self.target;
        Uid(format!("{volume_id:?} on {node_id:?}").into())
    }
}

// === impl Progress ===

impl Progress {
    /// Drops what the newest objects contradict.
    pub(crate) fn expire(&mut self, view: &View<'_>) {
        self.published
            .take_if(|published| published.connection != view.connection || !view.may_write(published));
        self.proof.take_if(|proof| !view.is_covered_by(proof));
        // Without a connection the next call fails, and says so.
        self.sync
            .driver
            .take_if(|(session, _)| view.context.session.is_some() && *session != view.context.session);
    }

    /// The session that must last until the command's write is sent.
    pub(crate) fn session_of(&self, command: &Command) -> Option<Option<Instant>> {
        let rests_on_session = match command {
            Command::MarkAttached(published) => published.is_none(),
            Command::MarkDetached | Command::RemoveFinalizer(_) => self.proof.is_none(),
            Command::Connect | Command::GetAttachment | Command::GetOther(_) => false,
            Command::GetVolume(_) | Command::GetNode(_) => false,
            Command::GetSecret { .. } | Command::AddPvFinalizer(_) | Command::Record(_) => false,
            Command::SaveUndoError(_) | Command::Publish(_) | Command::Unpublish { .. } => false,
            Command::KeepOrphan(_) | Command::EndOrphan | Command::KeepProof(_) => false,
        };
        let driver = self.sync.driver.filter(|_| rests_on_session);
        driver.map(|(session, _)| session)
    }

    /// A publish has succeeded. Former answers about its target do not count any more.
    pub(crate) fn publish_succeeded(&mut self, published: Published) {
        self.sync
            .unpublished
            .retain(|(target, _)| *target != published.target);
        self.published = Some(published);
    }
}

// === impl SyncProgress ===

impl SyncProgress {
    /// The content of a Secret, once it is read.
    pub(crate) fn secret(&self, secret: &SecretRef) -> Option<&Option<Secrets>> {
        let read = self.secrets.iter().rfind(|(known, _)| known == secret);
        read.map(|(_, content)| content)
    }
}
