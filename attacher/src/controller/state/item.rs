//! The work items that the state takes from the queue.

use std::sync::Arc;

use crate::model::{Attachment, Volume};
use crate::plan::{Operation, Orphan, Subject};
use crate::workqueue::Key;

/// One key of the queue, with the newest objects of its name. The caller returns it with the result of its sync to
/// [`ControllerState::finish`](super::ControllerState::finish).
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// Attach or detach.
    Attachment {
        attachment: Arc<Attachment>,
        operation: Operation,
    },
    /// Unpublish a target that no VolumeAttachment records.
    Orphan(Arc<Orphan>),
    /// Remove our finalizer from a PersistentVolume.
    Volume(Arc<Volume>),
    /// Record the handle of a PersistentVolume on VolumeAttachments that lack it.
    Backfill {
        volume: Arc<Volume>,
        attachments: Vec<Arc<Attachment>>,
    },
}

/// The key whose sync sends the calls.
pub(crate) fn key(subject: &Subject) -> Key {
    match subject {
        Subject::Attachment(_, attachment) => Key::Attachment(attachment.name.clone()),
        Subject::Orphan(orphan) => Key::Target(orphan.target.clone()),
    }
}
