//! The keys that events enqueue.

use std::sync::Arc;

use super::ControllerState;
use crate::informer::{Change, StoreDelta};
use crate::model::{Attachment, Capabilities, Node, Volume};
use crate::plan;
use crate::workqueue::{Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// While a sync runs, a change that is not its own marks its key dirty. The watch may show its writes before their responses
    /// arrive.
    pub(super) fn attachments_changed(&mut self, change: Change<Attachment>) {
        let written = matches!(change, Change::LocallyUpdated(_));
        for StoreDelta { name, before, after } in self.index.attachments_changed(change) {
            self.mark_changed(&name);
            if let Some(changed) = after.as_ref().or(before.as_ref()) {
                self.enqueue_orphans_waiting_for(changed);
            }
            if let Some(after) = &after {
                self.check_attachment(before.as_deref(), after);
            }
            let key = Key::Attachment(name);
            if let Some(volume) = after.as_ref().filter(|a| plan::lacks_handle(a))
                && let Some(volume) = volume.volume_name()
            {
                self.to_backfill.insert(volume.clone());
            }
            // The response to the status write may have been lost.
            if let Some(attached) = after.as_ref().filter(|after| after.attached)
                && let Some(known) = self.attachment_states.get_mut(&attached.uid)
            {
                known.progress.uncertain = None;
            }
            match &after {
                Some(after) if after.attached => self.evidence.no_earlier_call(&after.uid),
                Some(after) if before.as_ref().is_none_or(|before| before.uid != after.uid) => {
                    if after.finalizer || after.recorded.node_id.is_some() {
                        self.evidence.seen_unattached(&after.uid, self.queue.now);
                    }
                }
                Some(_) | None => {}
            }
            match (before, after) {
                (Some(before), Some(after)) if before.uid == after.uid => {
                    let deleted = before.deleting != after.deleting;
                    if self.queue.is_running(&key) {
                        if deleted || !written && !self.is_own_write(&before, &after) {
                            self.queue.enqueue_if_pending(&key, &Lane::ALL);
                        }
                    } else if deleted || !(written || differ_in_errors_alone(&before, &after)) {
                        if let Some(known) = self.attachment_states.get_mut(&after.uid) {
                            known.suspended = None;
                        }
                        self.reevaluate(&key);
                    }
                }
                (before, _) => {
                    if let Some(gone) = before {
                        self.attachment_gone(&gone);
                    }
                    self.reevaluate(&key);
                }
            }
        }
    }

    /// A live read showed another version of the VolumeAttachment than that of the request, and maybe than `before` in the store.
    pub(in crate::controller) fn read_edit(&mut self, before: Option<&Attachment>, attachment: &Attachment) {
        let newest = self.index.newest(attachment);
        let is_edited = newest
            .zip(before)
            .is_some_and(|(newest, before)| **newest != *before && !differ_in_errors_alone(before, newest));
        if is_edited && let Some(known) = self.attachment_states.get_mut(&attachment.uid) {
            known.suspended = None;
        }
        self.reevaluate(&Key::Attachment(attachment.name.clone()));
    }

    /// Whether a running sync writes this change: the record that it is sending, the removal of our finalizer, or a status.
    fn is_own_write(&self, before: &Attachment, after: &Attachment) -> bool {
        let known = self.attachment_states.get(&after.uid);
        let record = known.and_then(|known| known.progress.sync.record.as_ref());
        let is_recorded = after.finalizer && record == Some(&after.recorded);
        let changed = (before.finalizer, &before.recorded) != (after.finalizer, &after.recorded);
        fn status(of: &Attachment) -> impl PartialEq + use<'_> {
            (of.attached, &of.metadata, &of.attach_error, &of.detach_error)
        }
        match changed {
            true => is_recorded || after.deleting && !after.finalizer,
            false => status(before) != status(after),
        }
    }

    fn attachment_gone(&mut self, attachment: &Attachment) {
        let known = self.attachment_states.remove(&attachment.uid);
        if let Some(published) = known.and_then(|known| known.progress.uncertain) {
            self.add_orphan(published);
        }
        self.evidence.forget(&attachment.uid);
        self.evidence.no_earlier_call(&attachment.uid);
        if let Some(volume) = attachment.volume_name() {
            self.reevaluate(&Key::Volume(volume.clone()));
        }
    }

    pub(super) fn volumes_changed(&mut self, change: Change<Volume>) {
        for StoreDelta { name, before, after } in self.index.volumes_changed(change) {
            if let Some(after) = &after {
                let was = |before: &Volume| {
                    (&before.uid, before.deleting, &before.spec) == (&after.uid, after.deleting, &after.spec)
                };
                if before.is_none() {
                    self.check_attached_twice(&name);
                }
                if !before.as_deref().is_some_and(was) {
                    self.requeue(self.index.by_volume.get(&name).cloned().collect());
                }
            }
            self.reevaluate(&Key::Volume(name));
        }
    }

    pub(super) fn nodes_changed(&mut self, change: Change<Node>) {
        for StoreDelta { name, before, after } in self.index.nodes_changed(change) {
            // A CSINode also changes with what other drivers and the kubelet write there.
            let identity =
                |node: &Option<Arc<Node>>| node.as_ref().map(|node| (node.uid.clone(), node.id.clone()));
            if identity(&before) != identity(&after) {
                if let Some(id) = after.as_ref().and_then(|after| after.id.as_ref()) {
                    self.check_node_id(id, &name);
                }
                let names: Vec<_> = self.index.by_node.get(&name).cloned().collect();
                for attachment in names.iter().filter_map(|name| self.index.attachments.get(name)) {
                    self.evidence.forget(&attachment.uid);
                }
                self.requeue(names);
                for orphan in self.orphans.values().filter(|o| o.attachment.node == name) {
                    self.evidence.forget(&orphan.uid());
                    let key = Key::Target(orphan.target.clone());
                    self.queue.enqueue_if_pending(&key, &Lane::ALL);
                }
            }
        }
    }

    /// Requeues VolumeAttachments at once, also if their repair is suspended, because something changed that they depend on.
    fn requeue(&mut self, names: Vec<Arc<str>>) {
        for name in names {
            let attachment = self.index.attachments.get(&name);
            let known = attachment.and_then(|attachment| self.attachment_states.get_mut(&attachment.uid));
            let key = Key::Attachment(name);
            if known.is_some_and(|known| known.suspended.take().is_some()) {
                self.reevaluate(&key);
            } else {
                self.queue.enqueue_if_pending(&key, &Lane::ALL);
            }
        }
    }

    /// The driver is connected again, maybe with other capabilities.
    pub(super) fn driver_connected(&mut self, capabilities: Capabilities) {
        self.connection += 1;
        self.evidence.reconnected();
        let changed = self.capabilities.replace(capabilities) != Some(capabilities);
        for attachment in self.index.attachments.iter() {
            if self.queue.is_running(&Key::Attachment(attachment.name.clone())) {
                let known = self.attachment_states.entry(attachment.uid.clone()).or_default();
                known.is_overtaken = true;
            }
        }
        self.queue.enqueue_disconnected();
        if !changed {
            return;
        }
        // Refusals and lists of the driver with its former capabilities are obsolete.
        self.end_round();
        self.for_each_state(|known| {
            known.suspended = None;
            if !capabilities.publish {
                known.repair = None;
            }
        });
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
