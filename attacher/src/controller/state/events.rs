//! Which keys an event enqueues.

use super::ControllerState;
use crate::informer::{Change, StoreDelta};
use crate::model::{Attachment, Capabilities, Node, Volume};
use crate::plan::Operation;
use crate::workqueue::Key;

// === impl ControllerState ===

impl ControllerState {
    pub(super) fn attachments_changed(&mut self, change: Change<Attachment>) {
        let written = matches!(change, Change::LocallyUpdated(_));
        for (name, delta) in self.index.attachments_changed(change) {
            if delta != StoreDelta::Stale {
                self.mark_dirty(&name);
                // The response to the status write may have been lost.
                if let Some(attached) = self.index.attachment(&name).filter(|newest| newest.attached)
                    && let Some(known) = self.attachment_states.get_mut(&attached.uid)
                {
                    known.unwritten_publish = None;
                }
            }
            let key = Key::Attachment(name);
            match delta {
                StoreDelta::Stale => {}
                StoreDelta::Added { replaced } => {
                    if let Some(replaced) = replaced {
                        self.attachment_gone(&replaced);
                    }
                    self.reevaluate(&key);
                }
                StoreDelta::Updated { before } => self.attachment_changed(&key, &before, written),
                StoreDelta::Deleted { before } => {
                    self.queue.forget(&key);
                    self.attachment_gone(&before);
                }
            }
        }
    }

    /// While a sync runs, only a deletion marks it dirty: it reads and writes all else itself, and the watch may show its
    /// writes before their responses arrive.
    fn attachment_changed(&mut self, key: &Key, before: &Attachment, written: bool) {
        let Key::Attachment(name) = key else { return };
        if let Some(volume) = before.volume_name() {
            self.forget_deleted(volume);
        }
        let Some(after) = self.index.attachment(name) else {
            return;
        };
        let deleted = before.deleting != after.deleting;
        if self.queue.is_running(key) {
            if deleted {
                self.queue.enqueue_if_pending(key);
            }
        } else if deleted || !(written || differ_in_errors_alone(before, after)) {
            self.repairs.parked.remove(&before.uid);
            self.reevaluate(key);
        }
    }

    fn attachment_gone(&mut self, attachment: &Attachment) {
        self.resource_exhausted_by_node
            .remove(&attachment.node, &attachment.name);
        self.forget_repairs(attachment);
        let known = self.attachment_states.remove(&attachment.uid);
        if let Some(published) = known.and_then(|known| known.unwritten_publish) {
            self.abandon(published);
        }
        if let Some(volume) = attachment.volume_name() {
            self.forget_deleted(volume);
            self.reevaluate(&Key::Volume(volume.clone()));
        }
    }

    pub(super) fn volumes_changed(&mut self, change: Change<Volume>) {
        for (name, delta) in self.index.volumes_changed(change) {
            let matters = match (&delta, self.index.volume(&name)) {
                (StoreDelta::Added { .. }, Some(_)) => true,
                (StoreDelta::Updated { before }, Some(after)) => {
                    before.deleting != after.deleting || before.spec != after.spec
                }
                (
                    StoreDelta::Stale
                    | StoreDelta::Added { .. }
                    | StoreDelta::Updated { .. }
                    | StoreDelta::Deleted { .. },
                    _,
                ) => false,
            };
            if matters {
                let attachments: Vec<_> = self.index.attachments_of_volume(&name).cloned().collect();
                attachments.iter().for_each(|attachment| self.requeue(attachment));
            }
            if let StoreDelta::Deleted { before }
            | StoreDelta::Added {
                replaced: Some(before),
            } = &delta
            {
                self.remember_deleted(before);
            }
            self.reevaluate(&Key::Volume(name));
        }
    }

    pub(super) fn nodes_changed(&mut self, change: Change<Node>) {
        for (name, delta) in self.index.nodes_changed(change) {
            // A CSINode also changes with what other drivers and the kubelet write there.
            let matters = match (&delta, self.index.node(&name)) {
                (StoreDelta::Added { .. }, Some(_)) => true,
                (StoreDelta::Updated { before }, Some(after)) => before.id != after.id,
                (
                    StoreDelta::Stale
                    | StoreDelta::Added { .. }
                    | StoreDelta::Updated { .. }
                    | StoreDelta::Deleted { .. },
                    _,
                ) => false,
            };
            if matters {
                let attachments: Vec<_> = self.index.attachments_of_node(&name).cloned().collect();
                attachments.iter().for_each(|attachment| self.requeue(attachment));
            }
        }
    }

    /// Whether the driver has calls to publish and unpublish.
    pub(super) fn publishes(&self) -> bool {
        self.capabilities.is_none_or(|capabilities| capabilities.publish)
    }

    /// The driver is connected again, maybe with other capabilities.
    pub(super) fn driver_connected(&mut self, capabilities: Capabilities) {
        let published = self.publishes();
        let changed = self.capabilities.replace(capabilities) != Some(capabilities);
        for known in self.attachment_states.values_mut() {
            known.pending.take_if(|write| write.ends_with_connection());
        }
        for attachment in self.index.attachments() {
            if self.queue.is_running(&Key::Attachment(attachment.name.clone())) {
                let known = self.attachment_states.entry(attachment.uid.clone()).or_default();
                known.started_before_reconnect = true;
            }
        }
        self.queue.enqueue_disconnected();
        if !changed {
            return;
        }
        // Refusals and lists of the driver with its former capabilities say little about it now.
        self.repairs.dirty = None;
        self.repairs.parked.clear();
        match (published, capabilities.publish) {
            (true, false) => self.repairs.wanted.clear(),
            (false, true) => {
                // Volumes that were attached without a call, or are being attached so now, need it.
                let missing_finalizer = self.index.attachments().filter(|a| {
                    let is_running = || self.queue.is_running(&Key::Attachment(a.name.clone()));
                    !a.deleting && !a.finalizer && (a.attached || is_running())
                });
                self.repairs
                    .wanted
                    .extend(missing_finalizer.map(|a| (a.uid.clone(), Operation::Attach)));
            }
            (true, true) | (false, false) => {}
        }
        self.reevaluate_all();
    }
}

/// Only this controller writes errors, so a change of errors alone is the echo of a write whose response was lost. Any other
/// change, even of a label that the store does not keep, is an edit after which the user expects a retry.
fn differ_in_errors_alone(before: &Attachment, after: &Attachment) -> bool {
    let errors_differ =
        before.attach_error != after.attach_error || before.detach_error != after.detach_error;
    let rest = Attachment {
        version: after.version,
        attach_error: after.attach_error.clone(),
        detach_error: after.detach_error.clone(),
        ..before.clone()
    };
    errors_differ && rest == *after
}

#[cfg(test)]
mod tests;
