//! Attaches that wait for a detach, because their node has no capacity for another volume.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{ATTACHES, ControllerState, Item, SyncError};
use crate::model::Attachment;
use crate::plan::{Operation, Subject};
use crate::workqueue::{Key, Lane, Outcome, Stage};

/// gRPC's RESOURCE_EXHAUSTED: of ControllerPublishVolume, the node's attach limit is reached.
pub(super) const RESOURCE_EXHAUSTED: i32 = 8;

/// An attach waits for a detach of its node, which ends the wait, instead of its backoff. Half of the default `--timeout`,
/// because a detach may take effect after its call has timed out.
const DETACH_WAIT: Duration = Duration::from_millis(7500);

/// How long an attach without capacity is not reported while a detach of its node is queued or running: after two minutes kubelet
/// reports a pod whose volumes are not attached.
const UNREPORTED: Duration = Duration::from_secs(120);

// === impl ControllerState ===

impl ControllerState {
    /// Whether the failure of a sync is not worth a report yet: its turn comes, or a detach that may free capacity of the
    /// node is queued or running. kubelet fails pods whose status has RESOURCE_EXHAUSTED.
    /// An error that is reported says what the next call waits for.
    pub(crate) fn defers_report(&self, item: &Item, error: &mut SyncError) -> bool {
        let Item::Subject(Subject::Attachment(operation, attachment)) = item else {
            return false;
        };
        let key = Key::Attachment(attachment.name.clone());
        let is_exhausted = *operation == Operation::Attach && error.code == Some(RESOURCE_EXHAUSTED);
        let is_deferred = error.code.is_some() && self.queue.defers_report(&key)
            || is_exhausted
                && !self.detaches_on(&attachment.node).is_empty()
                && !self.fails_for(&key, UNREPORTED);
        let entry = self.queue.entry(&key).filter(|_| error.code.is_some());
        if let Some(wait) = entry.and_then(|entry| self.waits_for(entry, self.queue.now)) {
            error.message = format!("{}; {wait}", error.message);
        }
        is_deferred
    }

    fn fails_for(&self, key: &Key, period: Duration) -> bool {
        let failures = self.queue.failures(key);
        failures.is_some_and(|failures| self.queue.now.saturating_duration_since(failures.since) >= period)
    }

    /// The call of a sync ended. Missing capacity that a detach of the node may free says nothing about other limits, unless
    /// the driver's limit explains the refusal.
    pub(crate) fn call_ended(&mut self, key: &Key, outcome: Outcome) {
        let attach = self.queue.entry(key).filter(|entry| entry.lane == Lane::Attach);
        let node = attach.and_then(|attach| attach.node.as_ref());
        let is_unrelated = outcome == Outcome::Failed(RESOURCE_EXHAUSTED)
            && node.is_some_and(|node| !self.detaches_on(node).is_empty())
            && !self.queue.is_refused_by_driver(key);
        let outcome = if is_unrelated { Outcome::Unrelated } else { outcome };
        self.queue.call_ended(key, outcome);
    }

    /// Makes an attach that was refused for want of capacity wait for the node's detaches, which go first.
    pub(super) fn wait_for_detach(&mut self, attachment: &Attachment, error: &mut SyncError) {
        let detaches = self.detaches_on(&attachment.node);
        if detaches.is_empty() {
            return;
        }
        for key in detaches {
            self.queue.move_to_front(&key);
        }
        error.retry_after = error.retry_after.max(Some(DETACH_WAIT));
    }

    /// Ends the backoff of attaches that may succeed after a detach, which released the volume, by any PersistentVolume or inline,
    /// and capacity on its node.
    pub(super) fn enqueue_waiting_for(&mut self, detached: &Attachment, handle: Option<&Arc<str>>) {
        let handle = handle.or_else(|| self.index.handle(detached));
        let of_handle = handle.into_iter().flat_map(|handle| self.index.of_handle(handle));
        let of_volume = detached.volume_name().into_iter();
        let of_volume = of_volume.flat_map(|volume| self.index.of_volume(volume));
        let waiting = of_handle
            .chain(of_volume)
            .map(|other| Key::Attachment(other.name.clone()));
        let waiting: BTreeSet<_> = waiting.collect();
        for key in waiting {
            self.queue.enqueue_if_pending(&key, &ATTACHES);
        }
        self.enqueue_waiting_for_capacity(&detached.node);
    }

    /// Ends the backoff of the attach that has waited longest for capacity of the node, as a detach frees it for one volume.
    fn enqueue_waiting_for_capacity(&mut self, node: &str) {
        let waits = |attachment: &Arc<Attachment>| {
            let key = Key::Attachment(attachment.name.clone());
            // The status may lack the code, as older API servers do not store it.
            let code = self.queue.failed_with(&key, &attachment.uid);
            (code == Some(RESOURCE_EXHAUSTED)).then_some(key)
        };
        let waiting: Vec<_> = self.index.on_node(node).filter_map(waits).collect();
        let since = |key: &&Key| self.queue.waiting_since(key);
        match waiting
            .iter()
            .filter(|key| since(key).is_some())
            .min_by_key(since)
            .cloned()
        {
            Some(oldest) => self.queue.enqueue_if_pending(&oldest, &ATTACHES),
            // Their calls may have been refused before the detach.
            None => {
                for running in waiting {
                    self.queue.enqueue_if_pending(&running, &ATTACHES);
                }
            }
        }
    }

    /// The detaches of a node that are queued or running, also if only the driver still executes them, without others in
    /// backoff.
    fn detaches_on(&self, node: &Arc<str>) -> Vec<Key> {
        let attachments = self.index.by_node.get(node).cloned().map(Key::Attachment);
        let orphans = self
            .orphans
            .values()
            .filter(|orphan| orphan.attachment.node == *node);
        let keys = attachments.chain(orphans.map(|orphan| Key::Target(orphan.target.clone())));
        keys.filter(|key| {
            self.queue.entry(key).is_some_and(|entry| {
                let is_executed = entry.failures.as_ref().is_some_and(|failures| failures.executes);
                entry.lane == Lane::Detach && (is_executed || !matches!(entry.stage, Stage::Waiting { .. }))
            })
        })
        .collect()
    }
}

#[cfg(test)]
mod tests;
