//! Lists as evidence that targets are unpublished, which [`plan::decide`](crate::plan::decide) judges.

use std::time::Instant;

use super::ControllerState;
use crate::model::Driver;
use crate::plan::reconcile::{ListVolumesResult, listed_handle};
use crate::plan::{self, DetachPlan, NodeState};
use crate::workqueue::{Class, Key, Lane};

// === impl ControllerState ===

impl ControllerState {
    /// Adds the targets of all detaches and orphans to a round that begins.
    pub(super) fn watch_targets(&mut self, result: &mut ListVolumesResult, driver: &Driver) {
        self.evidence.round_begins();
        let mut watch = |plan: &DetachPlan, attachment: Option<_>| {
            let present = plan.present_target();
            for target in std::iter::once(plan.target.clone()).chain(present) {
                if let Some(handle) = listed_handle(&target, driver) {
                    result.watch(target, Option::clone(&attachment), handle);
                }
            }
        };
        for attachment in self.index.attachments.iter() {
            let is_detached_again = plan::has_stale_status(attachment);
            if (attachment.deleting && attachment.finalizer || is_detached_again)
                && let Ok(plan) = plan::detach(&self.inputs(attachment), driver)
            {
                watch(&plan, Some(attachment.name.clone()));
            }
        }
        for orphan in self.orphans.values() {
            let node = self.index.nodes.get(&orphan.attachment.node);
            let plan = DetachPlan {
                target: orphan.target.clone(),
                node: NodeState::of(node.map(|node| &**node), &orphan.target.node_id),
                secret: None,
                migrated: orphan.migrated,
            };
            watch(&plan, None);
        }
    }

    /// Adds a complete list with this number of entries to the evidence, and retries the detaches that it proves.
    pub(super) fn targets_listed(&mut self, result: &mut ListVolumesResult, entries: u64, began: Instant) {
        let before = self.evidence.take_lists();
        if result.connection != self.connection {
            return;
        }
        for watched in std::mem::take(&mut result.watched) {
            let (target, state) = (watched.target, watched.listed_state);
            let before = before.get(&target).copied().unwrap_or_default();
            if self
                .evidence
                .listed(target.clone(), before, state, entries, began)
            {
                let key = watched.attachment.map_or(Key::Target(target), Key::Attachment);
                self.queue.enqueue_if_pending(&key, &Lane::ALL);
            }
        }
    }

    /// The number of detaches and orphans that wait for a proof.
    pub(crate) fn unproven(&self) -> usize {
        let failures = self
            .queue
            .items()
            .filter_map(|(_, entry)| entry.failures.as_ref());
        failures
            .filter(|failures| failures.last.class == Class::Unproven)
            .count()
    }
}
