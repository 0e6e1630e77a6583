//! Queries on the fields of a VolumeAttachment.

use jiff::Timestamp;
use k8s_openapi::api::storage::v1::{VolumeAttachment, VolumeError};

use crate::objects::ObjectExt;
use crate::path::VolumePath;
use crate::time::rfc3339;

/// The field manager of attachers, the Go sidecar included.
const MANAGER: &str = "csi-attacher";

/// Whether the attacher's finalizer is on the attachment, so that the driver may have been called.
pub(super) fn has_finalizer(path: &VolumePath<'_>, va: &VolumeAttachment) -> bool {
    path.finalizer()
        .is_some_and(|finalizer| va.finalizers().contains(&finalizer))
}

/// When the attacher wrote finalizer and node id.
pub(super) fn recorded_at(va: &VolumeAttachment) -> Option<Timestamp> {
    va.written_by(MANAGER, "")
}

/// When the attacher last wrote the status; it does not rewrite the status of an attached volume.
pub(super) fn attached_at(va: &VolumeAttachment) -> Option<Timestamp> {
    va.written_by(MANAGER, "status").or(va.created_at())
}

/// When the attacher last wrote the attachment.
pub(super) fn last_write(va: &VolumeAttachment, error: Option<&VolumeError>) -> Option<Timestamp> {
    let error = error.and_then(|error| Some(error.time.as_ref()?.0));
    error.max(recorded_at(va)).max(va.written_by(MANAGER, "status"))
}

/// The error's message and time.
pub(super) fn describe(error: &VolumeError) -> String {
    let message = error.message.as_deref().unwrap_or("(no message)");
    match &error.time {
        Some(time) => format!("{message} (last at {})", rfc3339(time.0)),
        None => message.to_owned(),
    }
}

/// Whether the error's message contains this text.
pub(super) fn mentions(error: &VolumeError, text: &str) -> bool {
    error
        .message
        .as_deref()
        .is_some_and(|message| message.contains(text))
}

/// The command that removes these finalizers and no others.
pub(super) fn remove_finalizers(name: &str, finalizers: &[String]) -> String {
    let quoted: Vec<_> = finalizers
        .iter()
        .map(|finalizer| format!("\"{finalizer}\""))
        .collect();
    format!(
        "kubectl patch volumeattachment {name} --type=strategic -p \
         '{{\"metadata\":{{\"$deleteFromPrimitiveList/finalizers\":[{}]}}}}'",
        quoted.join(",")
    )
}
