//! Errors of syncs: the message for the object's status, and the class for the retry.

use crate::csi::{CallError, Reach};
use crate::kube_api::Error;
use crate::model::{PublishTarget, SecretRef};
use crate::plan::{Failure, NodeState, Stop, Unproven};
use crate::report::chain;
use crate::workqueue::{Class, SyncError};

/// The API server rejects longer messages, and the whole status with them.
pub(super) const MESSAGE_BYTES: usize = 1024;

const INVALID_ARGUMENT: i32 = 3;

// === impl SyncError ===

impl SyncError {
    /// An error without a gRPC code.
    pub(super) fn new(class: Class, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            code: None,
            class,
            retry_after: None,
            reported: true,
        }
    }

    pub(super) fn api(what: &str, error: &Error) -> Self {
        let class = match error {
            // Transient: it may succeed as soon as the API server recovers.
            Error::Unanswered(_)
            | Error::NotLeading(_)
            | Error::Rejected {
                retry_after: Some(_), ..
            } => Class::Uncertain,
            Error::Rejected { status, .. } if !error.is_final() && ![401, 403, 409].contains(status) => {
                Class::Uncertain
            }
            Error::NotFound(_) | Error::Replaced(_) | Error::Rejected { .. } | Error::Unusable(_) => {
                Class::Final
            }
        };
        let retry_after = if let Error::Rejected { retry_after, .. } = error {
            *retry_after
        } else {
            None
        };
        Self {
            retry_after,
            // A replica that does not lead must not write, and an overloaded API server asked for a pause.
            reported: !matches!(error, Error::NotLeading(_)) && retry_after.is_none(),
            ..Self::new(class, format!("{what}: {}", chain(error)))
        }
    }

    pub(super) fn call(error: &CallError) -> Self {
        Self {
            code: Some(error.code.number()),
            reported: !matches!(error.reach, Reach::NotSent | Reach::Cancelled),
            ..Self::new(error.class(), error.to_string())
        }
    }

    /// `missing`: a Secret that was not sent, as it cannot be read; or a recorded one that was sent, `is_former`, as the
    /// PersistentVolume names none now.
    pub(super) fn call_without(missing: Option<&SecretRef>, is_former: bool, error: &CallError) -> Self {
        let failed = Self::call(error);
        let Some(secret) = missing.map(ToString::to_string) else {
            return failed;
        };
        let how = match is_former {
            true => format!(
                "with the recorded secret {secret:?}, which the PersistentVolume does not name any more"
            ),
            false => format!("without secret {secret:?}, which cannot be read or is invalid"),
        };
        Self {
            message: format!("{} (called {how})", failed.message),
            ..failed
        }
    }

    /// The call was not begun because the process is shutting down.
    pub(super) fn draining() -> Self {
        Self::call(&CallError::not_sent("the attacher is shutting down"))
    }

    /// The sync panicked. It is retried: other inputs may not lead to the panic.
    pub(super) fn panicked() -> Self {
        Self::new(Class::Final, "internal error (panic); see the csi-attacher log")
    }

    /// The inputs changed during the sync. The next one plans from the new inputs.
    pub(super) fn outdated() -> Self {
        Self {
            reported: false,
            ..Self::new(
                Class::Uncertain,
                "the node's id, the PersistentVolume or the VolumeAttachment changed during the sync",
            )
        }
    }

    /// The response to a write shows that it was not stored as sent.
    pub(super) fn not_stored(what: &str) -> Self {
        Self::new(
            Class::Uncertain,
            format!(
                "the API server accepted the write and did not store it as sent, or another client changed it at once: {what}"
            ),
        )
    }

    /// The API server's response to the write of a record holds another record.
    pub(super) fn not_recorded() -> Self {
        Self::new(
            Class::Uncertain,
            "the API server did not store the VolumeAttachment's finalizer and annotations as written, or another client \
             changed them at once; publishing nothing until they are stored",
        )
    }

    /// The machine stopped the sync, after the failure `last` if there was any.
    pub(super) fn stopped(stop: &Stop, finalizer: &str, last: Option<&Failure>) -> Self {
        match stop {
            Stop::Refused(refusal) => Self::new(Class::Refused, refusal.to_string()),
            Stop::Failed => Self::outdated(),
            Stop::Unproven(unproven) => Self::unproven(unproven, finalizer, last),
            Stop::NoPublishCalls => Self::new(
                Class::Unproven,
                format!(
                    "the CSI driver reports no publish calls (PUBLISH_UNPUBLISH_VOLUME) any more, and the volume may be published: \
                     bring the calls back. {}",
                    cures(finalizer, true),
                ),
            ),
            Stop::MissingFinalizer(PublishTarget { volume_id, node_id }) => Self::new(
                Class::Uncertain,
                format!(
                    "volume {volume_id:?} is attached to node id {node_id:?} by another VolumeAttachment, too, which lacks our \
                     finalizer or the volume's handle; waiting until it has both or is deleted"
                ),
            ),
            Stop::AmbiguousNodeId(PublishTarget { volume_id, node_id }) => Self::new(
                Class::Uncertain,
                format!(
                    "another VolumeAttachment has volume {volume_id:?} on the same node under another node id than {node_id:?}, \
                     and both may be the same machine: not unpublishing before that VolumeAttachment is deleted"
                ),
            ),
        }
    }

    /// The driver does not know a node id under which the volume may be published, and nothing else proves that it is not.
    fn unproven(Unproven { plan, node_ids }: &Unproven, finalizer: &str, last: Option<&Failure>) -> Self {
        let PublishTarget {
            volume_id,
            node_id: recorded,
        } = &plan.target;
        // The cure is safe only for the machines that have these ids.
        let node = match (&plan.node, &node_ids[..]) {
            (NodeState::OtherId(present), [id]) if id == present => format!(
                "node id {present:?} (which the node registers now; it is unpublished from the recorded {recorded:?})"
            ),
            (NodeState::OtherId(present), [_, _]) => {
                format!("node ids {recorded:?} and {present:?} (which the node registers now)")
            }
            (NodeState::OtherId(present), _) => {
                format!("node id {recorded:?} (the node registers {present:?} now)")
            }
            (NodeState::SameId, _) => format!("node id {recorded:?} (which the node registers)"),
            (NodeState::Unregistered, _) => {
                format!("node id {recorded:?} (its CSINode does not list the driver now)")
            }
            (NodeState::Gone, _) => format!("node id {recorded:?} (its CSINode does not exist)"),
        };
        // The flag is about targets that the driver does not know, not about requests that it does not understand.
        let has_flag = last.is_none_or(|last| last.code != Some(INVALID_ARGUMENT));
        Self {
            code: last.and_then(|last| last.code),
            ..Self::new(
                Class::Unproven,
                format!(
                    "nothing proves that volume {volume_id:?} is detached from {node}; waiting for OK, or \
                     for lists of the driver that show the volume elsewhere. {} Last answer: {}",
                    cures(finalizer, has_flag),
                    last.map_or("none", |last| &last.message),
                ),
            )
        }
    }

    /// The publish of an attached volume failed, and its node registered again.
    pub(super) fn other_node_id(target: &PublishTarget, present: &str, error: &CallError) -> Self {
        let PublishTarget { volume_id, node_id } = target;
        let failed = Self::call(error);
        Self {
            message: format!(
                "volume {volume_id:?} is attached under node id {node_id:?}, and the node registers {present:?} now: delete the \
                 pods that use it there, so that it is detached and attached again; {}",
                failed.message
            ),
            ..failed
        }
    }

    /// The sync completed its work, but the stored object still requires it.
    pub(super) fn watch_is_late() -> Self {
        Self::new(
            Class::Final,
            "waiting for the watch to show the result of the last sync",
        )
    }
}

/// What ends the wait for a proof of detach.
fn cures(finalizer: &str, has_flag: bool) -> String {
    let flag = match has_flag {
        true => {
            "If the node, the volume or the driver's calls are gone for good, set --assume-unpublished-after=DURATION; or make"
        }
        false => "Make",
    };
    format!(
        "{flag} sure that the volume is detached, and remove our finalizer: kubectl patch volumeattachment NAME --type=strategic -p \
         '{{\"metadata\":{{\"$deleteFromPrimitiveList/finalizers\":[{finalizer:?}]}}}}'."
    )
}

/// Truncates a message to this number of bytes, at a character boundary.
pub(super) fn cut(message: &str, bytes: usize) -> &str {
    &message[..message.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncates_messages_at_character_boundaries() {
        let cut = |message: &str| cut(message, MESSAGE_BYTES).to_owned();
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"x".repeat(1024)).len(), 1024);
        assert_eq!(cut(&"x".repeat(1025)).len(), 1024);
        let odd = format!("x{}", "é".repeat(600));
        assert_eq!(cut(&odd).len(), 1023);
        assert!(odd.starts_with(&cut(&odd)));
    }
}
