//! What goes wrong, as it is told to people.

use std::time::Duration;

use super::Controller;
use crate::controller::state::PendingStatusWrite;
use crate::csi::ControllerClient;
use crate::kube_api::{Cluster, Error, Side};
use crate::model::{Attachment, Problem, PublishTarget};
use crate::plan::{DetachPlan, PresentNodeId, Refusal};
use crate::report::{chain, time};
use crate::workqueue::Class;

/// Why a job is to be tried again.
#[derive(Debug)]
pub(super) struct Failure {
    /// What stands in the status.
    pub(super) message: String,
    /// The gRPC code, if the driver answered.
    pub(super) code: Option<i32>,
    /// How to wait.
    pub(super) class: Class,
    /// What the driver answered, if only its write failed.
    pub(super) answer: Option<PendingStatusWrite>,
    /// How long the API server asked to wait.
    pub(super) retry_after: Option<Duration>,
    /// Whether it belongs in the object's status.
    pub(super) told: bool,
}

/// The API server refuses longer messages, and with them the whole status.
pub(super) const MESSAGE_BYTES: usize = 1024;

// === impl Failure ===

impl Failure {
    /// A request to the API server failed.
    pub(super) fn api(what: &str, error: &Error) -> Self {
        let class = match error {
            // It may be over as soon as the API server is.
            Error::Unanswered(_)
            | Error::Throttled { .. }
            | Error::Refused {
                status: 429 | 500..=599,
                ..
            } => Class::Uncertain,
            Error::NotFound(_) | Error::Replaced(_) | Error::Refused { .. } | Error::Unusable(_) => {
                Class::Final
            }
            Error::NotLeading(_) => Class::Uncertain,
        };
        Self {
            message: format!("{what}: {}", chain(error)),
            code: None,
            class,
            answer: None,
            retry_after: error.retry_after(),
            // To tell it would be a write.
            told: !matches!(error, Error::NotLeading(_)),
        }
    }

    /// A fault of ours, which is tried again all the same: other facts may not lead to it.
    pub(super) fn panicked() -> Self {
        Self {
            message:
                "the attacher failed by a fault of its own (a panic, which its log describes); it will try \
                      again"
                    .to_owned(),
            code: None,
            class: Class::Final,
            answer: None,
            retry_after: None,
            told: true,
        }
    }

    /// Somebody else has the volume at `target`, and no finalizer that would get it detached one day.
    pub(super) fn unguarded(target: &PublishTarget) -> Self {
        let PublishTarget {
            volume_id: handle,
            node_id,
        } = target;
        Self {
            message: format!(
                "volume {handle:?} is attached to node id {node_id:?} by another VolumeAttachment, too, which lacks \
                 our finalizer; waiting until that is back"
            ),
            code: None,
            class: Class::Uncertain,
            answer: None,
            retry_after: None,
            told: true,
        }
    }

    /// What the attempt was planned from has changed since. The next one is planned from what is known by then.
    pub(super) fn outdated() -> Self {
        Self {
            message: "the node's id, the PersistentVolume or the VolumeAttachment changed during the attempt"
                .to_owned(),
            code: None,
            class: Class::Uncertain,
            answer: None,
            retry_after: None,
            told: false,
        }
    }

    /// The API server's answer to the write of a record holds another one.
    pub(super) fn misrecorded() -> Self {
        Self {
            message:
                "the API server did not store what the VolumeAttachment is to record (its finalizer and \
                      annotations), or somebody changes it at once; publishing nothing until it is stored"
                    .to_owned(),
            code: None,
            class: Class::Uncertain,
            answer: None,
            retry_after: None,
            told: true,
        }
    }

    /// The driver understands none of the node ids under which the volume may be attached.
    pub(super) fn unresolved(plan: &DetachPlan, last: &Self) -> Self {
        let PublishTarget {
            volume_id: handle,
            node_id,
        } = &plan.target;
        let present = match &plan.present {
            PresentNodeId::Differs(present) => format!("the present one, {present:?}"),
            PresentNodeId::Same | PresentNodeId::Gone => "the CSINode shows none now".to_owned(),
        };
        Self {
            message: format!(
                "the driver does not accept the recorded node id {node_id:?} ({present}), so volume {handle:?} may \
                 still be attached: make sure that it is detached, then remove our finalizer from the \
                 VolumeAttachment; {}",
                last.message
            ),
            code: last.code,
            class: Class::Final,
            answer: None,
            retry_after: None,
            told: true,
        }
    }

    /// The object cannot be worked on as it is.
    pub(super) fn refused(refusal: &Refusal) -> Self {
        Self {
            message: refusal.to_string(),
            code: None,
            class: Class::Refused,
            answer: None,
            retry_after: None,
            told: true,
        }
    }
}

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Writes `failure` into the status of `attachment`, where the attach/detach controller reads it
    /// and turns it into an event of the pod.
    pub(super) async fn tell(&self, attachment: &Attachment, failure: &Failure) {
        if !failure.told {
            return;
        }
        let side = if attachment.deleting {
            Side::Detach
        } else {
            Side::Attach
        };
        let problem = Problem {
            time: time((self.clock)()),
            message: cut(&failure.message, MESSAGE_BYTES).to_owned(),
            code: failure.code.filter(|_| self.error_codes),
        };
        let known = match side {
            Side::Attach => &attachment.attach_error,
            Side::Detach => &attachment.detach_error,
        };
        if known.as_deref() == Some(&problem) {
            return;
        }
        match self.cluster.save_problem(attachment, side, &problem).await {
            Ok(attachment) => self.written(attachment),
            Err(error) if error.is_gone() => self.departed(attachment),
            Err(error) => tracing::warn!(error = chain(&error), "could not save the error in the status"),
        }
    }
}

/// Cuts a message to so many bytes, between characters.
pub(super) fn cut(message: &str, bytes: usize) -> &str {
    &message[..message.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_cut_between_characters() {
        let cut = |message: &str| cut(message, MESSAGE_BYTES).to_owned();
        assert_eq!(cut("short"), "short");
        assert_eq!(cut(&"x".repeat(1024)).len(), 1024);
        assert_eq!(cut(&"x".repeat(1025)).len(), 1024);
        let odd = format!("x{}", "é".repeat(600));
        assert_eq!(cut(&odd).len(), 1023);
        assert!(odd.starts_with(&cut(&odd)));
    }
}
