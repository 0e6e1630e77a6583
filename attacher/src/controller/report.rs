//! How a job is told to those who watch: its span, and the Events on its objects.

use tracing::{Span, field, info_span};

use super::Controller;
use super::sync_error::Failure;
use crate::controller::state::{Fault, Finding, Subject};
use crate::csi::ControllerClient;
use crate::kube_api::Cluster;
use crate::kube_api::events::{Reason, Regarding};
use crate::model::{Attachment, Driver};
use crate::plan::Operation;
use crate::trace;

/// The span that everything in a job is logged and traced in.
pub(super) fn span(subject: &Subject, driver: &Driver) -> Span {
    let driver = &driver.name;
    match subject {
        Subject::Attachment(Operation::Attach, a) => info_span!(
            "attach", va = %a.name, pv = a.volume_name().map(|name| &**name), node = %a.node,
            // A repair is no part of the attach that was reached long ago.
            otel.trace_id = (!a.attached).then(|| field::display(trace(a, Operation::Attach))),
            otel.uid = %a.uid, otel.driver = %driver, otel.status_description = field::Empty
        ),
        Subject::Attachment(Operation::Detach, a) => info_span!(
            "detach", va = %a.name, pv = a.volume_name().map(|name| &**name), node = %a.node,
            otel.trace_id = %trace(a, Operation::Detach),
            otel.uid = %a.uid, otel.driver = %driver, otel.status_description = field::Empty
        ),
        Subject::Target(abandoned) => info_span!(
            "unpublish", va = %abandoned.attachment.name, node = %abandoned.attachment.node,
            otel.uid = %abandoned.attachment.uid, otel.driver = %driver, otel.status_description = field::Empty
        ),
        Subject::Volume(volume) => info_span!(
            "release", pv = %volume.name, otel.uid = %volume.uid, otel.driver = %driver,
            otel.status_description = field::Empty
        ),
    }
}

fn trace(attachment: &Attachment, wanted: Operation) -> trace::Id<'_> {
    trace::Id {
        uid: &attachment.uid,
        wanted,
    }
}

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Tells of a failed attempt.
    pub(super) fn announce_failure(&self, wanted: Operation, attachment: &Attachment, failure: &Failure) {
        // What belongs in no status is not yet a failure for people.
        if !failure.told {
            return;
        }
        let Attachment { name, node, .. } = attachment;
        let why = &failure.message;
        let (reason, message) = match wanted {
            Operation::Attach => (
                Reason::AttachFailed,
                format!("cannot attach to node {node} (VolumeAttachment {name}): {why}"),
            ),
            Operation::Detach => (
                Reason::DetachFailed,
                format!("cannot detach from node {node} (VolumeAttachment {name}): {why}"),
            ),
        };
        self.announce(attachment, reason, message);
    }

    /// Tells of a success, if failures were told before it. The status remembers them over our restarts.
    pub(super) fn announce_recovery(&self, wanted: Operation, attachment: &Attachment) {
        let Attachment { name, node, .. } = attachment;
        let (failed, reason, what) = match wanted {
            // It was attached, and is once more.
            Operation::Attach if attachment.attached => {
                let message = format!("published to node {node} again (VolumeAttachment {name})");
                return self.announce(attachment, Reason::AttachmentRestored, message);
            }
            Operation::Attach => (
                attachment.attach_error.is_some(),
                Reason::AttachRecovered,
                "attached to",
            ),
            Operation::Detach => (
                attachment.detach_error.is_some(),
                Reason::DetachRecovered,
                "detached from",
            ),
        };
        if failed {
            let message = format!("{what} node {node} after earlier failures (VolumeAttachment {name})");
            self.announce(attachment, reason, message);
        }
    }

    /// Tells of what a survey of the driver's list found, if it may have cost somebody a volume.
    pub fn announce_finding(&self, finding: &Finding) {
        let Attachment { name, node, .. } = &*finding.attachment;
        match finding.fault {
            Fault::Lost => {
                let message = format!(
                    "the driver does not list the volume on node {node} any more (VolumeAttachment {name}); publishing it again"
                );
                self.announce(&finding.attachment, Reason::AttachmentLost, message);
            }
            Fault::Leftover => {}
        }
    }

    /// Tells of something that happened to an attachment, on it and on its PersistentVolume.
    pub(super) fn announce(&self, attachment: &Attachment, reason: Reason, message: String) {
        let volume = attachment
            .volume_name()
            .and_then(|name| self.state().volume(name).map(|volume| Regarding::from(&**volume)));
        if let Some(volume) = volume {
            self.recorder.tell(volume, reason, message.clone());
        }
        self.recorder.tell(attachment, reason, message);
    }
}
