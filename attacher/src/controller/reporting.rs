//! Reports of a sync: its span, the error in the object's status, and the Events on its objects.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::ObjectReference;
use tracing::{Span, field, info_span};

use super::state::{Finding, Item};
use super::sync_error::{MESSAGE_BYTES, cut};
use super::{Controller, SyncError};
use crate::csi::{Code, ControllerClient};
use crate::kube_api::events::Reason;
use crate::kube_api::{AttachmentRequest, Cluster};
use crate::model::{Attachment, Driver, Problem, PublishTarget};
use crate::plan::{Operation, Subject};
use crate::report::{chain, time};
use crate::trace;

pub(super) fn span(item: &Item, driver: &Driver) -> Span {
    let driver = &driver.name;
    match item {
        Item::Subject(Subject::Attachment(operation @ Operation::Attach, a)) => info_span!(
            "attach", va = %a.name, pv = a.volume_name().map(|name| &**name), node = %a.node,
            // A republish is not part of the trace of the first attach, which ended long ago.
            otel.trace_id = (!a.attached).then(|| field::display(trace::Id { uid: &a.uid, operation: *operation })),
            otel.uid = %a.uid, otel.driver = %driver, otel.status_description = field::Empty
        ),
        Item::Subject(Subject::Attachment(operation @ Operation::Detach, a)) => info_span!(
            "detach", va = %a.name, pv = a.volume_name().map(|name| &**name), node = %a.node,
            otel.trace_id = %trace::Id { uid: &a.uid, operation: *operation },
            otel.uid = %a.uid, otel.driver = %driver, otel.status_description = field::Empty
        ),
        Item::Subject(Subject::Orphan(orphan)) => info_span!(
            "unpublish", va = %orphan.attachment.name,
            pv = orphan.attachment.volume_name().map(|name| &**name), node = %orphan.attachment.node,
            otel.uid = %orphan.attachment.uid, otel.driver = %driver, otel.status_description = field::Empty
        ),
        Item::Volume(volume) => info_span!(
            "remove_finalizer", pv = %volume.name, otel.uid = %volume.uid, otel.driver = %driver,
            otel.status_description = field::Empty
        ),
        Item::Backfill { volume, .. } => info_span!(
            "record_volume_id", pv = %volume.name, otel.uid = %volume.uid, otel.driver = %driver,
            otel.status_description = field::Empty
        ),
    }
}

impl<K: Cluster, D: ControllerClient> Controller<K, D> {
    /// Reports a failed sync in an Event, the status and the log.
    pub(super) async fn report_failure(&self, item: &Item, error: &SyncError) {
        let SyncError { message, class, .. } = error;
        if let Item::Subject(subject @ Subject::Attachment(operation, attachment)) = item
            && error.reported
        {
            let Attachment { name, node, .. } = &**attachment;
            let (reason, what) = match operation {
                Operation::Attach => (Reason::AttachFailed, "attach to"),
                Operation::Detach => (Reason::DetachFailed, "detach from"),
            };
            let event = format!("cannot {what} node {node} (VolumeAttachment {name}): {message}");
            let code = error.code.and_then(Code::from_number);
            self.announce(attachment, reason, code, event);
            self.progress(subject, |progress| progress.has_undo_error_alone = false);
            self.write_error(&self.newest(attachment), *operation, error)
                .await;
        }
        Span::current().record(trace::FAILED, message.as_str());
        tracing::warn!(error = message, %class, "sync failed, requeuing");
    }

    /// Writes `error` into the status, from which the attach/detach controller makes an Event of the pod.
    async fn write_error(&self, attachment: &Attachment, failed: Operation, error: &SyncError) {
        let known = match failed {
            Operation::Detach => &attachment.detach_error,
            Operation::Attach => &attachment.attach_error,
        };
        let problem = self.problem(&error.message, error.code.filter(|_| self.error_codes));
        if known.as_deref() == Some(&problem) {
            return;
        }
        let save = AttachmentRequest::SaveError(failed, &problem);
        if let Err(error) = self.request(attachment, save).await {
            tracing::warn!(error = chain(&error), "could not write the error to the status");
        }
    }

    /// Writes that an attach unpublishes this target of an earlier one.
    pub(super) async fn save_undo_error(
        &self,
        subject: &Subject,
        attachment: &Attachment,
        target: &PublishTarget,
    ) -> Result<(), SyncError> {
        let PublishTarget { volume_id, node_id } = target;
        let message =
            format!("unpublishing volume {volume_id:?} from node id {node_id:?} of an earlier attach");
        let mut problem = self.problem(&message, None);
        if attachment.attach_error.as_deref() == Some(&problem) {
            // A write that changes nothing leaves the version as it is.
            problem.time = time((self.clock)() + SignedDuration::from_secs(1));
        }
        let save = AttachmentRequest::SaveError(Operation::Attach, &problem);
        let saved = self.request(attachment, save).await;
        let saved =
            saved.map_err(|error| SyncError::api("could not write the error to the status", &error))?;
        let Some(saved) = saved else { return Ok(()) };
        if saved.attach_error.is_none() {
            return Err(SyncError::not_stored("the error in the status"));
        }
        let is_first = attachment.attach_error.is_none();
        self.progress(subject, |progress| {
            progress.sync.is_undo_saved = true;
            progress.has_undo_error_alone |= is_first;
        });
        Ok(())
    }

    pub(super) fn problem(&self, message: &str, code: Option<i32>) -> Problem {
        Problem {
            time: time((self.clock)()),
            message: cut(message, MESSAGE_BYTES).to_owned(),
            code,
        }
    }

    /// Reports a completed attach: observes its duration since the request, and sends an Event if it is a republish or the status
    /// has an error of an earlier try, which survives restarts.
    pub(super) fn report_attached(&self, subject: &Subject, attachment: &Attachment) {
        // A republish does not count as attach latency.
        if attachment.attached {
            let Attachment { name, node, .. } = attachment;
            let message = format!("published to node {node} again (VolumeAttachment {name})");
            return self.announce(attachment, Reason::AttachmentRestored, None, message);
        }
        self.observe_latency(Operation::Attach, attachment);
        if !self.progress(subject, |progress| {
            std::mem::take(&mut progress.has_undo_error_alone)
        }) {
            self.report_recovery(Operation::Attach, attachment);
        }
    }

    /// Sends an Event if the status has an error of an earlier try of the completed operation.
    pub(super) fn report_recovery(&self, operation: Operation, attachment: &Attachment) {
        let (error, reason, what) = match operation {
            Operation::Attach => (&attachment.attach_error, Reason::AttachRecovered, "attached to"),
            Operation::Detach => (&attachment.detach_error, Reason::DetachRecovered, "detached from"),
        };
        if error.is_some() {
            let Attachment { name, node, .. } = attachment;
            let message = format!("{what} node {node} after earlier failures (VolumeAttachment {name})");
            self.announce(attachment, reason, None, message);
        }
    }

    /// Observes the time since the request of a completed operation. Repairs do not count.
    pub(super) fn observe_latency(&self, operation: Operation, attachment: &Attachment) {
        let Some(since) = attachment
            .requested_at
            .filter(|_| !operation.is_repair(attachment))
        else {
            return;
        };
        // The API server's clock set one time and this process's the other, so the difference may be negative.
        let after = (self.clock)().duration_since(since);
        let after: Duration = after.try_into().unwrap_or_default();
        let state = self.state();
        let histogram = match operation {
            Operation::Attach => &state.latency.attached,
            Operation::Detach => &state.latency.detached,
        };
        histogram.observe(after.as_secs_f64());
    }

    /// Logs what was found, and sends an Event. Of a drift, only one that a pod may notice has an Event.
    pub(super) fn announce_finding(&self, finding: &Finding) {
        match finding {
            Finding::Drift {
                attachment,
                target,
                repair,
                waits,
                times,
            } => self.announce_drift(attachment, target, (*repair, *waits), *times),
            Finding::NodeIdNotUnique {
                attachment,
                node_id,
                other,
            } => {
                let Attachment { name, node, .. } = &**attachment;
                let message = format!(
                    "nodes {node} and {other} have the same node id {node_id}, so the driver attaches and detaches volumes \
                     of one on the other (VolumeAttachment {name}): give each node an id of its own, which the driver's \
                     node plugin returns from NodeGetInfo"
                );
                let pv = attachment.volume_name().map(|name| &**name);
                tracing::warn!(va = %name, pv, %node, %other, %node_id, "two nodes have the same node id");
                self.recorder
                    .report(&**attachment, Reason::NodeIdNotUnique, None, message);
            }
            Finding::AttachedTwice { attachment, other } => {
                let Attachment { name, node, .. } = &**attachment;
                let pv = attachment.volume_name().map(|name| &**name);
                let message = format!(
                    "VolumeAttachments {name} (node {node}) and {} (node {}) both have attached=true for a volume of one \
                     node, and neither records a node id: delete the one whose node does not use the volume",
                    other.name, other.node
                );
                tracing::warn!(
                    va = %name, pv, %node, other = %other.name,
                    "two VolumeAttachments of a single-node volume have attached=true and no record"
                );
                self.announce(attachment, Reason::AttachedTwice, None, message);
            }
            Finding::PublishedWithoutAttachment {
                volume,
                target: PublishTarget { volume_id, node_id },
                node,
                is_new,
            } => {
                let message = format!(
                    "the driver lists volume {volume_id} on node {node} (node id {node_id}), but there is no \
                     VolumeAttachment: if the node does not use it, create a VolumeAttachment for both and delete it, so that \
                     the volume is detached"
                );
                if *is_new {
                    tracing::warn!(
                        pv = %volume.name, %node, volume = %volume_id, %node_id,
                        "the driver lists a volume on a node without VolumeAttachment"
                    );
                }
                self.recorder
                    .report(&**volume, Reason::PublishedWithoutAttachment, None, message);
            }
        }
    }

    /// `waits`: the repair was refused before.
    fn announce_drift(
        &self,
        attachment: &Attachment,
        target: &PublishTarget,
        (repair, waits): (Operation, bool),
        times: u32,
    ) {
        let Attachment { name, node, .. } = attachment;
        let follows = match (repair, waits) {
            (Operation::Attach, false) => "publishing it again",
            (Operation::Detach, false) => "unpublishing it again",
            (_, true) => {
                "its repair was refused, and waits until the VolumeAttachment, the PersistentVolume or the CSINode changes"
            }
        };
        let what = match repair {
            Operation::Attach => {
                let message = format!(
                    "the driver does not list the volume on node {node} any more (VolumeAttachment {name}); {follows}"
                );
                self.announce(attachment, Reason::AttachmentLost, None, message);
                "the driver does not list an attached volume on its node"
            }
            Operation::Detach => "the driver lists a detached volume on its node",
        };
        let pv = attachment.volume_name().map(|name| &**name);
        tracing::warn!(
            va = %name, pv, %node, volume = %target.volume_id, node_id = %target.node_id, times, "{what}; {follows}"
        );
    }

    /// Sends an Event about a VolumeAttachment and its PersistentVolume.
    fn announce(&self, attachment: &Attachment, reason: Reason, code: Option<Code>, message: String) {
        let volume = attachment.volume_name().and_then(|name| {
            let state = self.state();
            Some(ObjectReference::from(&**state.index.volumes.get(name)?))
        });
        if let Some(volume) = volume {
            self.recorder.report(volume, reason, code, message.clone());
        }
        self.recorder.report(attachment, reason, code, message);
    }
}
